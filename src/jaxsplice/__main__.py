"""`python -m jaxsplice` is `jaxsplice`."""

import sys

from jaxsplice.runtime.cli import main

sys.exit(main())
