"""`python -m sglang_umbp` is the console script `sglang-umbp`."""

import sys

from .cli import main

sys.exit(main())
