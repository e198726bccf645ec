"""The HTML page about runs. It is self-contained: no network access, no external script, style or font."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import datetime
from glob import escape
from pathlib import Path
from typing import Protocol

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from gnomon.accounting import digits
from gnomon.errors import DataError, GnomonError, SettingError
from gnomon.figures.picture import Picture
from gnomon.report.comparison import SavedComparison
from gnomon.report.reproduction import SavedReproduction
from gnomon.report.section import Cell, Section, Table
from gnomon.report.training import SavedRun
from gnomon.runs.folder import PICTURES, clear_folder
from gnomon.version import __version__

TEMPLATES = Path(__file__).parent / "templates"
FIGURE_LIST = ".pictures"
"""The file that lists the figures that a page wrote into its folder."""


class SavedFolder(Protocol):
    """A folder of results that a page can describe."""

    def section(self) -> Section:
        """Return the section of the page about this folder."""

    def overview_row(self) -> tuple[Cell, ...] | None:
        """Return the row in the table of all runs of a page, or None if the folder is not a training run."""


def report(folders: Sequence[Path], out: Path | None = None, *, unprotected: bool = True, figures: bool = True) -> Path:
    """Write a page about folders of runs, comparisons or reproductions.

    Args:
        folders: the folders to describe.
        out: the HTML file (default: `report.html`, inside the folder if there is only one).
        unprotected: whether to show values that were computed on private records without noise. Without them, the page
            may leave the data holder.
        figures: whether to write the figures as PNG and SVG files beside the page, too.

    Returns:
        The path of the page.

    Raises:
        SettingError: a folder does not exist or holds no results, or the page cannot be written.
        DataError: a file in a folder is damaged.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "metrics.jsonl").write_text('{"epoch": 1, "epsilon": 0.5}')
    ...     page = report([Path(folder)])
    ...     page.name, "Privacy spent during training" in page.read_text()
    ('report.html', True)
    """
    if not folders:
        raise SettingError("run", None, "at least one folder of a run")
    read = [_read_section(folder, unprotected) for folder in folders]
    sections = _with_distinct_figure_names([section for _, section in read])
    overview = _overview([saved for saved, _ in read])
    path = out if out is not None else (folders[0] / "report.html" if len(folders) == 1 else Path("report.html"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render(sections, overview))
        if figures:
            _save_figures(sections, path.with_name(f"{path.stem}-figures"))
    except OSError as error:
        raise SettingError("out", str(path), f"a writable file ({error.strerror})") from None
    return path


def read_folder(folder: Path, *, unprotected: bool = True) -> SavedFolder:
    """Read a folder of results, with or without its unprotected values.

    >>> read_folder(Path("nowhere"))
    Traceback (most recent call last):
    gnomon.errors.SettingError: run = 'nowhere' is invalid; expected an existing folder
    """
    if not folder.is_dir():
        raise SettingError("run", str(folder), "an existing folder")
    if (folder / "reproduction.json").exists():
        return SavedReproduction.read(folder, unprotected=unprotected)
    if (folder / "comparison.csv").exists():
        return SavedComparison.read(folder, unprotected=unprotected)
    if any((folder / name).exists() for name in ("metrics.jsonl", "statement.json", "config.yaml")):
        return SavedRun.read(folder, unprotected=unprotected)
    raise SettingError("run", str(folder), "a folder that gnomon train, compare or reproduce has written")


def _read_section(folder: Path, unprotected: bool) -> tuple[SavedFolder, Section]:
    """Read a folder and describe it. An error names the folder if its files contradict each other."""
    try:
        saved = read_folder(folder, unprotected=unprotected)
        return saved, saved.section()
    except GnomonError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        raise DataError(
            folder, f"has a file that is damaged or was edited ({reason})", "restore the folder, or run again"
        ) from error


def _save_figures(sections: Sequence[Section], folder: Path) -> None:
    """Write the figures of the page as files.

    The figures of an earlier page are removed first, because they may show what this page leaves out. Other images in
    the folder stay: `FIGURE_LIST` has the names of those that a page wrote.
    """
    listing, default_folder = folder / FIGURE_LIST, folder.name == "report-figures"
    try:
        earlier = [Path(name).name for name in listing.read_text().splitlines()]
    except (OSError, UnicodeDecodeError):
        earlier = []
    clear_folder(folder, PICTURES if default_folder else [*(escape(name) for name in earlier if name), FIGURE_LIST])
    pictures = [picture for section in sections for picture in section.all_pictures]
    for picture in pictures:
        picture.save(folder)
    if pictures and not default_folder:
        names = [f"{picture.file}.{extension}\n" for picture in pictures for extension in ("png", "svg")]
        listing.write_text("".join(names))


def render(sections: Sequence[Section], overview: Table | None = None) -> str:
    """Return the page as HTML. All text that comes from a folder is escaped.

    >>> render([Section("<script>", "a", "run", [], "gnomon train")]).count("&lt;script&gt;") > 0
    True
    """
    environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined)
    environment.globals["digits"] = digits
    parts = {name: Markup((TEMPLATES / name).read_text()) for name in ("page.css", "sort.js")}
    titles = [section.title for section in sections]
    return environment.get_template("page.html").render(
        title=" and ".join(titles) if len(titles) < 3 else f"{len(titles)} runs",
        sections=sections,
        overview=overview,
        css=parts["page.css"],
        script=parts["sort.js"],
        version=__version__,
        written=f"{datetime.now().astimezone():%d %B %Y, %H:%M %Z}",
        unprotected=any(picture.unprotected for section in sections for picture in section.all_pictures),
    )


def _overview(folders: Sequence[SavedFolder]) -> Table | None:
    """Return a table of the training runs of a page; None if there are fewer than two."""
    rows = [row for saved in folders if (row := saved.overview_row()) is not None]
    if len(rows) < 2:
        return None
    heads = ("run", "method", "data", "epsilon", "guarantee", "accuracy, %")
    return Table("The runs of this page. Click a column heading to sort.", heads, rows)


def _with_distinct_figure_names(sections: list[Section]) -> list[Section]:
    """Prefix the names of figures with the number and the name of their folder, if there are several folders."""
    if len(sections) == 1:
        return sections
    renamed = []
    for number, section in enumerate(sections, 1):
        prefix = f"{number}-{section.slug}"
        pictures, diagnostics = (_renamed(group, prefix) for group in (section.pictures, section.diagnostics))
        renamed.append(dataclasses.replace(section, pictures=pictures, diagnostics=diagnostics))
    return renamed


def _renamed(pictures: Sequence[Picture], prefix: str) -> list[Picture]:
    return [dataclasses.replace(picture, name=f"{prefix}-{picture.name}") for picture in pictures]
