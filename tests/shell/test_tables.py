"""What tables and sentences say, in narrow terminals and notebooks, of numbers that are made up here.

Not public: the classes that all texts are made of.
"""

import json
import re
from dataclasses import replace

import xarray as xr

import attnphase as ap
from attnphase.checks.comparison import Comparison, Quantity
from attnphase.checks.deviations import Limit, Measured
from attnphase.checks.report import Check, Report
from attnphase.checks.trajectories import TrajectoryComparison, TrajectoryQuantity
from attnphase.data.text import Table, pairs_text, wrapped

PROBLEM, ERR, NONE = ap.Problem(), "a<b: left out.", (xr.Dataset(), xr.Dataset())


def read(page):
    """Cells of a table, row by row, and paragraphs."""
    return [re.findall("<t[hd] .*?>(.*?)</t", row) for row in page.split("<tr>")[1:]], re.findall("<p>(.*?)</p>", page)


def test_what_is_too_wide_is_split_into_blocks_lists_and_lines():
    rows = (("50", "0.1234(5)", "+1.0", "x&", "7"), ("100", "0.2", "–", "yy", "8"))
    table = Table(("d", "mean", "z", "<b>", "se"), rows, left=(3,), joined=(2,))
    blocks = (
        "  d       mean     z\n 50  0.1234(5)  +1.0\n100        0.2     –\n\n  d  <b>  se\n 50  x&    7\n100  yy    8"
    )
    lists = "d = 50\nmean = 0.1234(5)\n  z = +1.0\n<b> = x&\nse = 7\n\nd = 100\nmean = 0.2, z = –\n<b> = yy\nse = 8"
    assert (table.text(20), table.text(19)) == (blocks, lists)
    columns = Table(table.heads[:3], rows, joined=(2,), by_column=True).text(19)
    assert columns == "d, mean\n50 = 0.1234(5)\n  z = +1.0\n100 = 0.2, z = –"
    assert read(table.html())[0][:2] == [["d", "mean", "z", "&lt;b&gt;", "se"], [*rows[0][:3], "x&amp;", "7"]]
    assert re.findall("align:(.)", table.html()) == [*"rrrlr"] * 3
    assert wrapped("  aa bb cc\nabcdefgh\n  x", 6) == "  aa\n    bb\n    cc\nabcdefgh\n  x"
    assert pairs_text([("name", "ten words " * 4), ("b", "c")], 36).split("\n")[1:] == ["      ten words", "b     c"]


def test_a_report_says_what_failed():
    checks = Check.below("a<b", 2.0, 1.0, "Said."), Check.left_out("c", "why"), Check.below("e", 0.5, 1.0, "fine")
    report, ends = Report(PROBLEM, 1.5, "all", checks), ["all branches, alpha = 1.5", "1 of 3 checks failed"]
    said = [["", "check", ""], ["FAILED", "a&lt;b", "2.0e+00 (limit 1.0e+00); Said."], ["-", "c", "why"]]
    assert read(report._repr_html_()) == ([*said, ["ok", "e", "5.0e-01 (limit 1.0e+00); fine"]], ends)
    assert repr(report) == f"<Report of problem {PROBLEM.hash}: {': '.join(ends)}>"
    told = json.loads(report.to_json())
    assert [told["alpha"], told["passed"], *(one["value"] for one in told["checks"])] == [1.5, False, 2.0, None, 0.5]


def test_a_comparison_shows_means_fits_and_what_has_none():
    both = Measured(50, 4, 0.52, 0.01, 0.02, 2.0), Measured(100, 4, 0.51, 0.003, 0.01, -3.4)
    plain = Quantity("semantic", 1.5, "q", 0.5, 0.0, "max_maps", both, None)
    fitted = replace(plain, limit=Limit(0.502, 0.004, 0.9, 0.2, 0.002, 0.5, 1.0, 0))
    row = ["q", "0.5", "0.520(10)", "+2.0", "0.510(3)", "-3.4"]
    heads = ["", "theory", "d = 50", "z", "d = 100", "z", "a of a + b/d", "z", "b"]
    end = "2 quantities compared, 1 of them in the limit of large d, 1 further than 3 standard errors; the worst"
    rows, said = read(Comparison(PROBLEM, (fitted, plain), (ERR,), *NONE)._repr_html_())
    assert rows == [heads, [*row, "0.502(4)", "+0.5", "0.9(2)"], [*row, *"–––"]]
    assert said[:2] == ["semantic, alpha = 1.5 (theory: max_maps)", "a&lt;b: left out."]
    assert said[2] == f"{end} deviates by 3.4; with 4 runs, a standard error is itself uncertain by 41%."
    assert "2 quantities compared in the limit of large d, " in str(Comparison(PROBLEM, (fitted, fitted), (), *NONE))
    assert repr(Comparison(PROBLEM, (), (), *NONE)).endswith(f"{PROBLEM.hash}: there is no run to compare.>")


def test_trajectories_show_their_ends_and_fits_of_the_distance_from_their_own_theory():
    """Of alpha = 1.5, a = (0.12 - 0.08) / 3 and b = 0.05 / 0.0075.

    Their errors are 0.05 sqrt(2) / 7.5 and sqrt(0.02^2 + 0.005^2) / 0.0075.
    """
    far = [
        TrajectoryQuantity("s", a, d, 4, "q", (t,), (0.5,), (0.52,), (0.01,), (-3, 2), (own,), (error,), (own / error,))
        for a, d, t, own, error in ((1.5, 100, 1.5, 0.08, 0.02), (1.5, 400, 1.5, 0.03, 0.005), (1, 100, 1, 0.5, 0.1))
    ]
    told = TrajectoryComparison(PROBLEM, (*far,), (ERR,), *NONE)
    heads = "limit runs z worst z own start sqrt(d) scatter"
    assert [" ".join(line.split()) for line in str(told).splitlines() if line] == [
        "s, alpha = 1.5, d = 100, 4 runs, time 1.5", f"{heads} d shift", "q 0.5 0.520(10) +2.0 3.0 4.0 0.2 8(2)",
        "s, alpha = 1.5, d = 400, 4 runs, time 1.5", f"{heads} d shift", "q 0.5 0.520(10) +2.0 3.0 6.0 0.4 12(2)",
        "s, alpha = 1, d = 100, 4 runs, time 1", f"{heads} d shift", "q 0.5 0.520(10) +2.0 3.0 5.0 0.2 50(10)",
        "difference from the theory of the runs' own starts at the end, a + b/d", "a z b", "q 0.013(9) +1.4 7(3)",
        ERR, "limits for large d: the worst deviates by 1.4 standard errors.",
    ]  # fmt: skip
    early = replace(far[2], start="only at alpha = 1")
    apart = [replace(one, start="ends apart", times=(t,)) for one, t in zip(far[:2], (1.5, 9.0), strict=True)]
    told = TrajectoryComparison(PROBLEM, (*far, early, *apart), (), *NONE)
    assert [*told.fits] == [("s", "q")]
    end = "limits for large d and 3 quantities at all times: the worst deviates by 3.0 standard errors."
    assert str(told).splitlines()[-1] == end
