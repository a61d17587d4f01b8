"""The list of guards that `make mutants` takes away is true: each text stands where it says, each test is there."""

from __future__ import annotations

from tools.mutants.guards import ROOT, read


def test_each_guard_stands_exactly_once_where_the_list_says() -> None:
    wrong = []
    for mutant in read():
        try:
            mutant.applied(ROOT)
        except (ValueError, OSError) as error:
            wrong.append(str(error))

    assert not wrong, "Bring tools/mutants/guards.toml in line with the code:\n" + "\n".join(wrong)


def test_each_guard_names_tests_that_are_there() -> None:
    missing = []
    for mutant in read():
        for test in mutant.tests:
            file, _sep, name = test.partition("::")
            if not (ROOT / file).is_file() or (name and f"def {name}(" not in (ROOT / file).read_text()):
                missing.append((mutant.name, test))

    assert not missing
    assert len({mutant.name for mutant in read()}) == len(read()) >= 60
