"""What `make docs` adds to the pages in docs/: the command line's reference, and the project's own documents.

MkDocs calls the functions with names that begin with `on_`.
"""

import doctest
import os
import posixpath
import re
from pathlib import Path

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
PROJECT = {"CONTRIBUTING.md": "project/contributing.md", "CHANGELOG.md": "project/changelog.md"}
PROJECT |= {"SECURITY.md": "project/security.md"}
COMMANDS = "reference/command-line.md"
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")
PROMPTED = re.compile(r"^```python\n(>>> .*?)^```$", re.M | re.S)


def command_line() -> str:
    """Return the page of every command and option, as `dagc --help` has them."""
    os.environ["_TYPER_STANDARD_TRACEBACK"] = "1"
    from typer.cli import get_docs_for_click

    from dagc.cli import app

    command = typer.main.get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="dagc", title="Command line")
    return re.sub(r"<(?=[a-z])", "&lt;", text)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    files.append(File.generated(config, COMMANDS, content=command_line()))
    for name, page in PROJECT.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links that leave docs/ on the disk point to the site's page, or be plain text where it has none."""
    source = page.file.src_uri
    place = next((name for name, uri in PROJECT.items() if uri == source), f"docs/{source}")

    def moved(link: re.Match[str]) -> str:
        label, (path, hash_, part) = link[1], link[2].partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return link[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(place), path))
        uri = PROJECT.get(target, target.removeprefix("docs/") if target.startswith("docs/") else None)
        if uri is None:
            if not (ROOT / target).exists():
                raise ValueError(f"{place} links to {target}, which does not exist")
            return label
        return f"[{label}]({posixpath.relpath(uri, posixpath.dirname(source) or '.')}{hash_}{part})"

    return LINK.sub(moved, PROMPTED.sub(_without_prompts, markdown))


def _without_prompts(block: re.Match[str]) -> str:
    """An example that can be copied into a file: no prompts, and what is printed as comments."""
    lines = []
    for example in doctest.DocTestParser().get_examples(block[1]):
        lines += [example.source.rstrip(), *(f"# {line}" for line in example.want.splitlines())]
    return "\n".join(("```python", *lines, "```"))
