"""`python -m torch_chameleon doctor`."""

import json

from torch_chameleon import doctor


def test_it_says_that_the_device_works(capsys):
    assert doctor.main(["--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["device"]["physical device"] == "cpu"
    assert report["self-test"]["bits"] == "equal"
    assert report["self-test"]["evictions"] > 0
    assert report["self-test"]["seconds"] < 30
    assert report["link"]["in, GB/s, measured"] > 0
    assert not any("failed" in section for section in report.values())


def test_what_fails_is_part_of_the_report(capsys, monkeypatch):
    def broken():
        raise OSError("no such thing")

    monkeypatch.setattr(doctor, "_SECTIONS", {"link": broken})
    assert doctor.main([]) == 1
    assert (
        "failed                   OSError: no such" in capsys.readouterr().out
    )
