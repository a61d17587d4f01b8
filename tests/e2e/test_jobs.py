"""A batch job in the browser: an array handed in by the form, its log followed, a file of it downloaded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

COMMAND = """for n in 1 2 3; do echo "step $n of $BERTH_ARRAY_INDEX"; sleep 0.3; done
echo "made by $BERTH_ARRAY_INDEX" > out.txt"""


def test_array_is_handed_in_followed_and_leaves_a_file(visit: Any, stack: Any) -> None:
    bob = visit("bob")
    page = bob.open("/jobs/")
    page.fill("#id_command", COMMAND)
    page.select_option("#id_gpu", "h100-1g")
    page.fill("#id_time", "5m")
    page.fill("#id_array", "1-2")
    page.fill("#id_artifacts", "out.txt")
    page.get_by_role("button", name="Run", exact=True).click()
    page.locator("#page-live a[href^='/jobs/job-']").first.wait_for()
    jobs = list(dict.fromkeys(re.findall(r"/jobs/job-[a-z0-9]+/", page.content())))[:2]
    assert len(jobs) == 2

    made = set()
    for address in jobs:
        page = bob.open(address)
        page.locator(".job-log").get_by_text(re.compile(r"step 3 of [12]")).wait_for(timeout=60_000)
        stack.until(lambda address=address: "Download out.txt" in bob.text(address), within_s=60)
        bob.go(page, address)
        with page.expect_download() as download:
            page.get_by_role("link", name="Download out.txt").click()
        made.add(Path(download.value.path()).read_text())
        # The file is there a moment before the job is over.
        page.get_by_text("Succeeded").first.wait_for()

    assert made == {"made by 1\n", "made by 2\n"}
