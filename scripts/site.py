#!/usr/bin/env python3
"""Builds the site from the documents: site.py MDBOOK DESTINATION.

The pages are those of docs/site/SUMMARY.md, at the paths that they have in the repository, so that their links work as
they are. Links to other files lead to the repository. Fails if a document in docs/ is on no page, or if a link or an
anchor of the site leads nowhere.
"""

import html.parser
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.parse
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "docs/site"
REPOSITORY = "https://github.com/leadergroup/leadergroup"
LINK = re.compile(r"(\]\(|^ *\[[^\]]+\]: +)([^)\s]+)", re.MULTILINE)
CODE = re.compile(r"^ *```.*?^ *```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def relative(path: Path) -> str:
    return path.resolve().relative_to(ROOT).as_posix()


def pages() -> list[str]:
    """The documents that the table of contents names."""
    links = LINK.findall((SITE / "SUMMARY.md").read_text())
    return [relative(SITE / target) for _, target in links]


def rewritten(document: str, known: set[str], images: set[str]) -> str:
    """The text of a document with the links of the site."""

    def link(match: re.Match) -> str:
        before, target = match.groups()
        path, _, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return match.group(0)
        file = (ROOT / document).parent / path
        name, anchor = relative(file), f"#{anchor}" if anchor else ""
        if name in known:
            # mdBook makes index.html of README.md, but for the links to it.
            return before + re.sub(r"README\.md$", "index.html", path) + anchor
        if file.suffix in (".svg", ".png"):
            images.add(name)
            return match.group(0)
        return f"{before}{REPOSITORY}/{'tree' if file.is_dir() else 'blob'}/main/{name}{anchor}"

    text, end, parts = (ROOT / document).read_text(), 0, []
    for code in CODE.finditer(text):
        parts += [LINK.sub(link, text[end : code.start()]), code.group(0)]
        end = code.end()
    return "".join(parts) + LINK.sub(link, text[end:])


class Page(html.parser.HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.links, self.anchors = set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name == "id":
                self.anchors.add(value)
            elif name in ("href", "src") and value and tag in ("a", "img"):
                self.links.add(value)


def broken(site: Path) -> list[str]:
    """The links of the site that lead nowhere."""
    found = {path: Page(path.read_text()) for path in site.rglob("*.html")}
    problems = []
    for path, page in found.items():
        # Its links are relative to the page that was not found.
        if path.name == "404.html":
            continue
        for link in sorted(page.links):
            target, anchor = urllib.parse.urldefrag(link)
            if re.match(r"[a-z]+:", target):
                continue
            file = (path.parent / urllib.parse.unquote(target)).resolve() if target else path
            if not file.exists():
                problems.append(f"{path.relative_to(site)}: broken link: {link}")
            elif anchor and file in found and urllib.parse.unquote(anchor) not in found[file].anchors:
                problems.append(f"{path.relative_to(site)}: no such heading: {link}")
    return problems


def main() -> None:
    mdbook, destination = sys.argv[1], Path(sys.argv[2]).resolve()
    listed = pages()
    every = {relative(path) for path in (ROOT / "docs").rglob("*.md") if SITE not in path.parents}
    problems = [f"docs/site/SUMMARY.md does not list {path}" for path in sorted(every - set(listed))]
    with tempfile.TemporaryDirectory() as folder:
        stage, images = Path(folder), set()
        for document in listed:
            target = stage / "src" / document
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(rewritten(document, set(listed), images))
        for image in images:
            target = stage / "src" / image
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / image, target)
        summary = LINK.sub(lambda m: m.group(1) + relative(SITE / m.group(2)), (SITE / "SUMMARY.md").read_text())
        (stage / "src/SUMMARY.md").write_text(summary)
        for file in ("book.toml", "site.css"):
            shutil.copy(SITE / file, stage)
        shutil.rmtree(destination, ignore_errors=True)
        subprocess.run([mdbook, "build", "--dest-dir", destination, stage], check=True)
    problems += broken(destination)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if problems:
        sys.exit(1)
    print(f"{len(listed)} pages in {destination}")


if __name__ == "__main__":
    main()
