"""The counts that the runner of nki-library's tests makes of a report."""

from __future__ import annotations

from tests.conformance import nki_library

REPORT = """<testsuites><testsuite>
<testcase name="a"/>
<testcase name="b"><failure message="wrong"/></testcase>
<testcase name="c"><skipped/></testcase>
<testcase name="d"><error message="setup"/></testcase>
<testcase name="e"><system-out>text</system-out></testcase>
</testsuite></testsuites>"""


def test_counts_of_a_report() -> None:
    assert nki_library.counts(REPORT) == {"failed": 2, "passed": 2, "skipped": 1}
