"""Lets a script's uploads to the Hugging Face Hub do nothing.

What a script has under `plan` are no weights. Calls that would change a
repository return what they return after a success, so that the script goes on;
downloads are as ever.
"""

import re
from typing import Any

from torch_chameleon._patches.after_import import after_import

# Methods that change nothing there; whatever else a version has is taken for
# one that does.
_READS = re.compile(
    r"(_|list_|get_|fetch_|inspect_|parse_|read_|search_|verify_|wait_for_"
    r"|download_|hf_hub_download|snapshot_download|auth_check|whoami"
    r"|resolve_|run_as_future)|.*_(info|exists|files_metadata)$"
)
# Made of create_commit(), and return what it does.
_COMMITS = ("upload_file", "upload_folder", "delete_file", "delete_folder")


def install() -> None:
    """Turns it on, now or as soon as the library is imported."""
    after_import("huggingface_hub.hf_api", _replace)


def _replace(hub: Any) -> None:
    def create_repo(self: Any, repo_id: str, **options: Any) -> Any:
        return hub.RepoUrl(f"{hub.constants.ENDPOINT}/{repo_id}")

    def create_commit(
        self: Any, repo_id: str, *args: Any, **options: Any
    ) -> Any:
        oid = "0" * 40
        return hub.CommitInfo(
            commit_url=f"{hub.constants.ENDPOINT}/{repo_id}/commit/{oid}",
            commit_message=options.get("commit_message", ""),
            commit_description=options.get("commit_description") or "",
            oid=oid,
        )

    def no_result(self: Any, *args: Any, **options: Any) -> None:
        return None

    with_result = {"create_repo": create_repo, "create_commit": create_commit}
    for name, value in list(vars(hub.HfApi).items()):
        if not callable(value) or _READS.match(name) or name in _COMMITS:
            continue
        setattr(hub.HfApi, name, with_result.get(name, no_result))
        # The module's functions are methods of one object.
        if hasattr(hub, name):
            setattr(hub, name, getattr(hub.api, name))
