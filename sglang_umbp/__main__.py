"""`python -m sglang_umbp` is the console script `sglang-umbp`."""

import sys

from sglang_umbp.cli import main

sys.exit(main())
