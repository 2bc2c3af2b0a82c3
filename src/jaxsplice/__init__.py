"""jaxsplice: cut subgraphs out of JAX programs and splice fused kernels and collectives in, with a proof per rewrite.

    fast = jaxsplice.optimize(fn)       # like jax.jit
    fast.lower(*args).report            # what was recognised, replaced, and how it was proved

See docs/index.md.
"""

from jaxsplice import models as models
from jaxsplice.kernels import Implementation as Implementation
from jaxsplice.kernels import Op as Op
from jaxsplice.kernels import Tolerance as Tolerance
from jaxsplice.passes.errors import JaxspliceError as JaxspliceError
from jaxsplice.passes.instrument import Instrument as Instrument
from jaxsplice.passes.ir.graph import Graph as Graph
from jaxsplice.passes.ir.text import Diff as Diff
from jaxsplice.passes.ir.text import diff as diff
from jaxsplice.passes.pipeline import Pass as Pass
from jaxsplice.passes.pipeline import Pipeline as Pipeline
from jaxsplice.passes.report import Report as Report
from jaxsplice.passes.rewrite.certificate import Certificate as Certificate
from jaxsplice.passes.rewrite.rule import Case as Case
from jaxsplice.passes.rewrite.rule import GraphRule as GraphRule
from jaxsplice.passes.rewrite.rule import NearMiss as NearMiss
from jaxsplice.passes.rewrite.rule import Refuse as Refuse
from jaxsplice.passes.rewrite.rule import Rule as Rule
from jaxsplice.runtime.bisect import Culprit as Culprit
from jaxsplice.runtime.bisect import bisect as bisect
from jaxsplice.runtime.compile import Compiled as Compiled
from jaxsplice.runtime.compile import compile as compile
from jaxsplice.runtime.explain import Explanation as Explanation
from jaxsplice.runtime.explain import explain as explain
from jaxsplice.runtime.optimize import Optimized as Optimized
from jaxsplice.runtime.optimize import optimize as optimize
from jaxsplice.runtime.rewrite import Result as Result
from jaxsplice.runtime.rewrite import rewrite as rewrite
from jaxsplice.runtime.target import Target as Target
from jaxsplice.runtime.tracing import trace as trace

__version__ = "0.1.0"
