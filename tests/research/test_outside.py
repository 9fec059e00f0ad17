"""Tables of programs from elsewhere are what their records say."""

from research.outside import TABLES


def app(variant, seed, score, sent):
    return {"program": "an app", "variant": variant, "seed": seed, "scores": [[0, 0.1], [3, score]], "bytes": sent}


def gpt(variant, seed, loss, sent):
    return {"program": "nanoGPT", "variant": variant, "seed": seed, "steps": 300, "loss": loss, "bytes": sent}


def test_apps_are_compared_seed_by_seed_at_their_last_round():
    runs = [app("none", 0, 0.5, 4000), app("none", 1, 0.6, 4000), app("none", 2, 0.9, 4000)]
    runs += [app("dagc", 0, 0.51, 100), app("dagc", 1, 0.61, 100), gpt("none", 0, 2.5, 1000)]
    runs += [{**app("dagc", 0, 0.7, 100), "program": "an app that was not run without dagc"}]
    heads, rows, source = TABLES["apps"](runs)
    assert rows == [["an app", "3", "55.0 ± 7.1 %", "56.0 ± 7.1 %", "+1.0 ± 0.0", "4.00 kB", "100 B, 40 times fewer"]]
    assert len(heads) == len(rows[0])
    assert "two seeds" in source


def test_a_gpt_is_compared_with_plain_ddp():
    runs = [gpt("none", 0, 2.5, 187_000_000), gpt("LocalSteps", 0, 2.45, 187_000), app("none", 0, 0.5, 1)]
    heads, rows, _ = TABLES["gpt"](runs)
    assert rows == [
        ["300", "plain DDP", "2.500", "", "187 MB", ""],
        ["", "LocalSteps", "2.450", "−0.050", "187 kB", "1,000"],
    ]
    assert len(heads) == len(rows[0])


def test_another_program_of_the_same_gpt_has_rows_of_its_own():
    runs = [gpt("none", 0, 2.5, 1000), {**gpt("none", 0, 2.4, 1000), "program": "nanoGPT, its optimizer"}]
    runs.append({**gpt("the hook", 0, 2.42, 10), "program": "nanoGPT, its optimizer"})
    _, rows, _ = TABLES["gpt"](runs)
    assert [row[:4] for row in rows] == [
        ["300", "plain DDP", "2.500", ""],
        ["300, its optimizer", "plain DDP", "2.400", ""],
        ["", "the hook", "2.420", "+0.020"],
    ]
    assert TABLES["apps"](runs)[1] == []
