"""For the site's API pages: the section that docstrings here call "Example" is one of code."""

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Give the section the name under which griffe reads doctests; any other is prose to it."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Change the docstring of an object before it is parsed."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.M)
