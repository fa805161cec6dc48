"""`python -m support.compatibility`, in `tests`: write the page again."""

from __future__ import annotations

from support.compatibility.page import PAGE, page

if __name__ == "__main__":
    PAGE.write_text(page())
