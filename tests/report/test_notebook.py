"""What a notebook shows of a run: a table and a curve, from its rows alone."""

import math
import re
from xml.etree import ElementTree

from dagc.folder import SCORE
from dagc.report import history_html


def rows(scores):
    """A round for each score; None is a round without an evaluation."""
    lines = []
    for number, score in enumerate(scores, 1):
        line = {"round": number, "bytes_up": 100 * number, "bytes_down": 900 * number, "seconds": 1.5 * number}
        lines.append(line if score is None else {**line, SCORE: score})
    return lines


def test_a_history_is_a_table_and_a_curve():
    page = ElementTree.fromstring(history_html(rows([0.25, None, 0.5, 0.75]), "accuracy"))
    cells = [[cell.text for cell in row] for row in page.iter("tr")]
    assert cells[0] == ["Round", "Accuracy", "Up", "Down", "Network time"]
    assert cells[1:] == [
        ["1", "25.00 %", "100 B", "900 B", "1.50 s"],
        ["3", "50.00 %", "300 B", "2.70 kB", "4.50 s"],
        ["4", "75.00 %", "400 B", "3.60 kB", "6.00 s"],
    ]
    (line,) = page.iter("polyline")
    points = [tuple(map(float, point.split(","))) for point in line.get("points").split()]
    assert [across for across, _ in points] == sorted(across for across, _ in points)
    assert [down for _, down in points] == sorted((down for _, down in points), reverse=True)
    assert all(0 < across < 420 and 0 < down < 160 for across, down in points)
    assert "Final accuracy: 75.00 % (the mean of the last 5" in history_html(rows([0.5, 0.75]), metric="accuracy")


def test_a_long_history_keeps_its_last_round_and_few_others():
    text = history_html(rows([0.5] * 1001))
    assert text.count("<tr>") == 1 + 10
    assert "<td>1,001</td>" in text
    assert len(text) < 20_000


def test_a_history_without_scores_or_with_one_that_is_not_a_number():
    assert "3 rounds, none of them evaluated yet" in history_html(rows([None] * 3))
    assert "0 rounds" in history_html([])
    assert "<td>–</td>" in history_html(rows([0.5, math.nan]))
    assert "<svg" not in history_html(rows([0.5]))
    flat = history_html([{**row, "bytes_up": 0, "bytes_down": 0} for row in rows([0.5, 0.5])])
    assert re.search(r"points='6\.0,154\.0 6\.0,154\.0'", flat)


def test_names_in_a_history_are_text():
    text = history_html(rows([0.5, 0.6]), "<script>alert(1)</script>\x1b[2J<b>'x'")
    assert "<script" not in text
    assert "<b>'x" not in text
    assert "\x1b" not in text
    ElementTree.fromstring(text)


def test_notes_are_below_a_history():
    for scores in ([0.5, 0.6], [None]):
        text = history_html(rows(scores), notes=["a < b", "c"])
        assert [each.text for each in ElementTree.fromstring(text).iter("p")][-2:] == ["Note: a < b", "Note: c"]
