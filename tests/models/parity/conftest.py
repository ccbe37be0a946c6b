"""How XLA compiles here: thousands of programs, each of which runs once for milliseconds."""

from tests import quick_compile

quick_compile.set_for_all_programs()
