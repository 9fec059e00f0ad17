"""The HTML document around every page that dagc writes: one file that needs no network."""

import json
from html import escape
from importlib import resources
from string import Template
from typing import Any

import dagc

__all__ = ["document", "template"]


def document(title: str, body: str, data: Any, package: str, style: str = "") -> str:
    """A complete page.

    Args:
        title: Its title.
        body: What is between the tags of the body, as HTML.
        data: What its script reads, as JSON.
        package: The package whose `page.js` is its script.
        style: CSS in addition to that of all pages.
    """
    parts = {
        "title": escape(title),
        "css": template("dagc.report", "page.css"),
        "style": style,
        "body": body,
        "data": json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
        "js": template(package, "page.js"),
        "version": escape(dagc.__version__),
    }
    return Template(template("dagc.report", "document.html")).substitute(parts)


def template(package: str, name: str) -> str:
    """A file of a package, as text."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")
