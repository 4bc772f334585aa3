"""Write the table of all claims to standard output."""

import sys

from attnworks.theory.report import markdown

sys.stdout.write(markdown())
