"""Whether tests take all of what they otherwise take a part of, as `make faults` has it."""

import os

WHOLE = os.environ.get("INFOLM_TESTS") == "whole"
