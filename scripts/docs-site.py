"""A hook of MkDocs (mkdocs.yml). It adds files outside of docs/ to the site, below repository/, if pages link to them.

A Markdown file becomes a page of the site. Another file becomes a page that shows its text. A link to a folder
leads to its README.md, or to the repository if it has none.
"""
import os
import posixpath
import re

from mkdocs.structure.files import File

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PREFIX = "repository/"
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
FENCE = re.compile(r"(^ *```.*?^ *```$)", re.M | re.S)
LANGUAGES = {".yaml": "yaml", ".json": "json", ".go": "go", ".lua": "lua", ".conf": "nginx", ".cfg": "text",
             ".yml": "yaml", ".service": "ini"}


def _place(path):
    """The place on the site of a file, given by its path in the repository."""
    if path.startswith("docs/"):
        return path[len("docs/"):]
    return PREFIX + (path if path.endswith(".md") else path + ".md")


def _target(link, source, repository):
    """Where a link of the file source (a path in the repository) leads on the site."""
    path, _, fragment = link.partition("#")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), path)) if path else source
    if path.startswith("docs/") and os.path.isfile(os.path.join(ROOT, path)):
        place = _place(path)
    else:
        if os.path.isdir(os.path.join(ROOT, path)):
            readme = posixpath.join(path, "README.md")
            if not os.path.isfile(os.path.join(ROOT, readme)):
                return f"{repository}/tree/main/{path}", None
            path = readme
        if not os.path.isfile(os.path.join(ROOT, path)):
            return link, None  # the strict build reports it
        place = _place(path)
    relative = posixpath.relpath(place, posixpath.dirname(_place(source)) or ".")
    return relative + ("#" + fragment if fragment else ""), path


def _rewrite(text, source, repository):
    """The text of a page with links to places on the site, and the files that it links to."""
    linked = []

    def replace(match):
        if "://" in match[2] or match[2].startswith("mailto:"):
            return match[0]
        link, path = _target(match[2], source, repository)
        if path:
            linked.append(path)
        return match[1] + link + match[3]

    parts = FENCE.split(text)
    parts[::2] = [LINK.sub(replace, part) for part in parts[::2]]
    return "".join(parts), linked


def _page(path, repository):
    """The Markdown for a file of the repository, and the files that it links to."""
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        text = f.read()
    if path.endswith(".md"):
        return _rewrite(text, path, repository)
    language = LANGUAGES.get(os.path.splitext(path)[1], "text")
    return f"# `{path}`\n\n````{language}\n{text}\n````\n", []


def on_files(files, config):
    """Adds the files outside of docs/ that pages link to, directly or through other such files."""
    repository = config.repo_url.rstrip("/")
    waiting = re.findall(re.escape(PREFIX) + r"(\S+\.md)", str(config.nav).replace("'", " "))
    for file in files.documentation_pages():
        waiting += _page("docs/" + file.src_uri, repository)[1]
    known = set()
    while waiting:
        path = waiting.pop()
        if path in known or path.startswith("docs/"):
            continue
        known.add(path)
        text, linked = _page(path, repository)
        waiting += linked
        file = File.generated(config, _place(path), content=text)
        file.inclusion = file.inclusion.INCLUDED if _place(path) in str(config.nav) else file.inclusion.NOT_IN_NAV
        files.append(file)
    return files


def _indent(markdown):
    """Indents the parts of list items by four spaces. With fewer, Python-Markdown ends the item."""
    out, width, fence, blank = [], 0, False, False
    for line in markdown.split("\n"):
        marker = None if fence else re.match(r"(\d+\.|[-*]) +", line)
        if marker:
            width = len(marker[0])
        elif line.strip() and not line.startswith(" ") and blank and not fence:
            width = 0
        elif width and line.startswith(" " * width):
            line = "    " + line[width:]
        if line.lstrip().startswith("```"):
            fence = not fence
        blank = not line.strip()
        out.append(line)
    return "\n".join(out)


def on_page_markdown(markdown, page, config, files):
    """Rewrites the links of the pages in docs/. Those of generated pages are rewritten already."""
    if not page.file.src_uri.startswith(PREFIX):
        markdown = _rewrite(markdown, "docs/" + page.file.src_uri, config.repo_url.rstrip("/"))[0]
    return _indent(markdown)
