"""`python -m jaxsplice.runtime` is `jaxsplice`."""

import sys

from jaxsplice.runtime.cli import main

sys.exit(main())
