"""For the API pages: griffe knows sections of `Examples`, in the plural, and shows others as text."""

from typing import Any

import griffe


class Examples(griffe.Extension):
    """Extension that makes `Example:` in docstrings a section whose code is shown as code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
