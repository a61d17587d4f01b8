from __future__ import annotations

import json
from html import unescape
from re import DOTALL, findall, sub
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from portal.policies.models import Policy
from portal.policies.selectors import in_force
from portal.policies.services import built_in, save_policy
from tests.portal.builders import World
from tests.web.conftest import Publish, SignedIn

HOME = "/operations/policies/"
PAGES = ("", "edit/", "json/", "1/", "1/confirm/", "compare/?a=1&b=2")
POSTS = ("edit/", "json/", "save/", "2/activate/", "2/roll-back/")


@pytest.fixture
def versions(world: World) -> World:
    """Version 1 was replaced by 2, which is in force; 3 is a draft."""
    for body, before, is_active in (({}, 0, True), ({"depth": 2}, 1, True), ({"depth": 9}, 2, False)):
        save_policy(
            actor=world.user("operator"), rights=world.rights("operator"), name="house rules", body=body,
            note=f"after {before}", based_on=before, now=world.now, is_active=is_active,
        )  # fmt: skip
    return world


def typed(text: str) -> dict[str, Any]:
    """Return the values of every field of the editor, as a browser would send them."""
    found: dict[str, Any] = {}
    form = text[text.index('id="policy-form"') :]
    for tag in findall(r"<input[^>]*>", form[: form.index("</form>")]):
        attributes = dict(findall(r'([\w-]+)="([^"]*)"', tag))
        name, value = attributes.get("name", ""), unescape(attributes.get("value", ""))
        if attributes.get("type") in ("checkbox", "radio"):
            if " checked" in tag:
                found.setdefault(name, []).append(value)
        elif name != "csrfmiddlewaretoken":
            found[name] = value
    for name, inner in findall(r'<select[^>]*name="([^"]+)"[^>]*>(.*?)</select>', form):
        [found[name]] = findall(r'value="([^"]*)" selected', inner) or [""]
    return found


def carried(text: str) -> dict[str, str]:
    """Return the hidden fields of the review page."""
    return {
        name: unescape(value)
        for name, value in findall(r'<input type="hidden" name="(name|body|based_on)" value="([^"]*)"', text)
    }


@pytest.mark.parametrize("who", ["alice", "bob", "charlie", "finance"])
def test_nobody_but_operators_sees_or_changes_policies(
    versions: World, signed_in: SignedIn, who: str
) -> None:
    client = signed_in(who)

    assert {client.get(HOME + page).status_code for page in PAGES} == {403}
    assert {client.post(HOME + page, {}).status_code for page in POSTS} == {403}
    assert Policy.objects.count() == 3
    assert HOME not in client.get("/").text


def test_the_list_says_who_made_what_when_and_what_is_in_force(versions: World, signed_in: SignedIn) -> None:
    text = signed_in("operator").get(HOME).text

    assert "2 · house rules" in text
    assert "after 1" in text
    assert [text.count(f"{word}</span>") for word in ("Active", "Replaced", "Draft")] == [1, 1, 1]
    assert "Operator" in text


def test_without_versions_the_built_in_rules_are_shown(world: World, signed_in: SignedIn) -> None:
    text = signed_in("operator").get(HOME).text

    assert "Berth goes by its built-in rules" in text
    assert "Priority, then first come" in text


def test_a_version_is_told_in_words_and_as_json(versions: World, signed_in: SignedIn) -> None:
    text = signed_in("operator").get(f"{HOME}2/").text

    assert "<dt>For how many requests</dt><dd>2</dd>" in text
    assert "Half-life of use" in text
    assert "&quot;depth&quot;: 2" in text


@pytest.mark.parametrize(
    "path", ["99/", "0/", "compare/?a=1&b=99", "compare/", "compare/?a=x&b=1", "edit/?from=99"]
)
def test_versions_that_are_not_there_are_not_found(versions: World, signed_in: SignedIn, path: str) -> None:
    assert signed_in("operator").get(HOME + path).status_code == 404


def test_two_versions_are_compared_rule_by_rule(versions: World, signed_in: SignedIn) -> None:
    text = signed_in("operator").get(f"{HOME}compare/?a=1&b=2").text

    assert "For how many" in text
    assert "policy-was" in text
    assert "Half-life of use" not in text


def test_the_form_sent_back_unchanged_is_the_policy_in_force(versions: World, signed_in: SignedIn) -> None:
    client = signed_in("operator")
    fields = typed(client.get(f"{HOME}edit/").text)

    review = client.post(f"{HOME}edit/", {**fields, "do": "review"})

    assert review.status_code == 200
    assert "Nothing differs" in review.text
    assert json.loads(carried(review.text)["body"]) == {**built_in(), "depth": 2}


def test_an_edit_goes_from_form_to_review_to_a_version_in_force(versions: World, signed_in: SignedIn) -> None:
    client = signed_in("operator")
    fields = typed(client.get(f"{HOME}edit/").text) | {"depth": "4", "half_life_s": "3 d", "do": "review"}

    review = client.post(f"{HOME}edit/", fields)
    assert "7 d" in review.text
    assert "3 d" in review.text
    assert Policy.objects.count() == 3, "nothing is saved by looking"
    saved = client.post(f"{HOME}save/", {**carried(review.text), "note": "shorter memory", "do": "save"})

    row = Policy.objects.get(is_active=True)
    assert saved.status_code == 302
    assert (row.version, row.note, row.body["depth"], row.body["half_life_s"]) == (
        4,
        "shorter memory",
        4,
        3 * 86_400,
    )
    assert row.made_by == versions.user("operator")


def test_the_form_shows_the_plain_choices_and_folds_the_rest_away(
    versions: World, signed_in: SignedIn
) -> None:
    client = signed_in("operator")
    page = client.get(f"{HOME}edit/").text
    plain = sub(r"<details.*?</details>", "", page, flags=DOTALL)

    shown = {name for name in typed(plain) if "." not in name or name.startswith("preempting")}
    assert shown - {"based_on", "name"} == {"order", "place", "backfill", "preempting.grace_s",
        "preempting.preemptible", "preempting.borrowed"}  # fmt: skip
    assert "one value is not the recommended one" in page, "version 2 reserves for two"
    assert page.count("Recommended</span>") == 3
    for yardstick in ("random", "best_fit", "dot_product", "shortest"):
        assert f'value="{yardstick}"' not in page
    recommended = typed(client.get(f"{HOME}edit/?from=recommended").text)
    assert (recommended["order"], recommended["depth"]) == (["default"], "1")
    assert recommended["preempting.by_score"] == ["yes"]


def test_a_version_with_a_yardstick_goes_on_but_cannot_be_saved_anew(
    versions: World, signed_in: SignedIn
) -> None:
    Policy.objects.filter(version=2).update(body={"place": "fgd"})
    client = signed_in("operator")
    fields = typed(client.get(f"{HOME}edit/").text)

    answer = client.post(f"{HOME}edit/", {**fields, "do": "review"})

    assert in_force().policy.place == "fgd"
    assert fields["place"] == ["fgd"]
    assert answer.status_code == 422
    assert "Choose one of: binpack, default, spread." in answer.text


def test_times_are_added_filled_in_and_removed_without_a_script(versions: World, signed_in: SignedIn) -> None:
    client = signed_in("operator")
    fields = typed(client.get(f"{HOME}edit/").text) | {
        "pools.parts.training": "1",
        "pools.zone": "Europe/Berlin",
    }
    for key in ("pools.times", "pools.times", "sleep.times", "memory_factors"):
        fields = typed(client.post(f"{HOME}edit/", {**fields, "do": f"add:{key}"}).text)
    fields = typed(client.post(f"{HOME}edit/", {**fields, "do": "drop:pools.times:1"}).text)
    fields |= {
        "pools.times[0].from": "08:00", "pools.times[0].to": "18:00", "pools.times[0].parts.interactive": "3",
        "sleep.times[0].from": "22:00", "sleep.times[0].to": "06:00", "sleep.times[0].awake": "2",
        "memory_factors[0].model": "l40s-48gb", "memory_factors[0].factor": "1500", "do": "review",
    }  # fmt: skip

    review = client.post(f"{HOME}edit/", fields)

    body = json.loads(carried(review.text)["body"])
    weekdays = {"days": [0, 1, 2, 3, 4]}
    assert body["pools"] == {
        "parts": {"training": 1},
        "times": [{**weekdays, "from": "08:00", "to": "18:00", "parts": {"interactive": 3}}],
        "zone": "Europe/Berlin",
    }
    assert body["sleep"]["times"] == [{**weekdays, "from": "22:00", "to": "06:00", "awake": 2}]
    assert body["memory_factors"] == {"l40s-48gb": 1500}
    assert "Monday to Friday 08:00–18:00: Interactive 100 %" in review.text
    again = client.post(f"{HOME}edit/", {**carried(review.text), "do": "back"})
    assert typed(again.text)["pools.times[0].to"] == "18:00"


@pytest.mark.parametrize(
    ("sent", "sentence"),
    [
        ({"depth": "0"}, "At least 1."),
        ({"depth": "many"}, "Give a whole number."),
        ({"half_life_s": "soon"}, "Write a time such as 6 h"),
        ({"half_life_s": "1 s"}, "At least 1 min."),
        ({"keep_better": "nan"}, "Give a number."),
        ({"order": "alphabet"}, "Choose one of:"),
        ({"pools.zone": "Mars"}, "There is no such time zone"),
        ({"pools.parts.training": "0"}, "At least one part must be above zero."),
        ({"pools.parts.training": "-1"}, "At least 0."),
        ({"sleep.times.rows": "1", "sleep.times[0].from": "25:00"}, "Write the time like 08:30"),
        ({"sleep.times.rows": "1"}, "Name at least one day."),
        ({"memory_factors.rows": "1", "memory_factors[0].model": "l40s-48gb"}, "Give a whole number."),
        ({"name": ""}, "Give it a name"),
    ],
)
def test_what_cannot_be_used_is_said_at_its_field_and_kept_as_typed(
    versions: World, signed_in: SignedIn, sent: dict[str, str], sentence: str
) -> None:
    client = signed_in("operator")
    fields = typed(client.get(f"{HOME}edit/").text) | sent

    answer = client.post(f"{HOME}edit/", {**fields, "do": "review"})

    assert answer.status_code == 422
    assert sentence in unescape(answer.text)
    assert "field-error" in answer.text
    assert "tone-bad" in answer.text
    for name, value in sent.items():
        if not name.endswith(".rows"):
            assert f'name="{name}" value="{value}"' in answer.text or f'name="{name}"' in answer.text


@pytest.mark.parametrize(
    "sent",
    [{}, {"do": "review"}, {"do": "add:order"}, {"do": "drop:pools.times:99"}, {"do": "drop:pools.times:٣"},
     {"do": "x" * 999}, {"pools.times.rows": "9" * 30, "do": "review"}, {"pools.times.rows": "9999", "do": "review"},
     {"depth": "9" * 5000, "do": "review"}, {"do": "back"}, {"do": "back", "body": "[" * 5000},
     {"do": "back", "body": '{"depth": NaN}'}, {"name": "a\x00b", "do": "review"}, {"based_on": "x", "do": "review"},
     {"memory_factors.rows": "1", "memory_factors[0].model": "<script>", "do": "review"}],
)  # fmt: skip
def test_nonsense_sent_to_the_form_changes_nothing(
    versions: World, signed_in: SignedIn, sent: dict[str, str]
) -> None:
    answer = signed_in("operator").post(f"{HOME}edit/", sent)

    assert answer.status_code in (200, 422)
    assert "<script>" not in answer.text.replace('<script type="module"', "")
    assert Policy.objects.count() == 3


def test_overlapping_times_are_named_at_the_later_one(versions: World, signed_in: SignedIn) -> None:
    client = signed_in("operator")
    fields = typed(client.get(f"{HOME}edit/").text)
    for number, (begin, end) in enumerate((("20:00", "06:00"), ("05:00", "07:00"))):
        at = f"sleep.times[{number}]"
        fields |= {f"{at}.days": ["0", "1"], f"{at}.from": begin, f"{at}.to": end, f"{at}.awake": "1"}
    fields |= {"sleep.times.rows": "2", "do": "review"}

    answer = client.post(f"{HOME}edit/", fields)

    assert answer.status_code == 422
    assert "It overlaps with time 1 on Tuesday." in answer.text


@pytest.mark.parametrize(
    ("text", "status", "sentence"),
    [
        ("{", 422, "This is not JSON."),
        ("[" * 5000, 422, "This is not JSON."),
        ("[]", 422, "Give an object"),
        ('{"pools": {"times": [{}]}}', 422, "pools.times[0].days"),
        ('{"depth": 3}', 200, "For how many"),
    ],
)
def test_rules_may_be_given_as_json(
    versions: World, signed_in: SignedIn, text: str, status: int, sentence: str
) -> None:
    client = signed_in("operator")
    assert "&quot;depth&quot;: 2" in client.get(f"{HOME}json/").text

    answer = client.post(f"{HOME}json/", {"body": text, "name": "house rules", "based_on": "2"})

    assert (answer.status_code, sentence in unescape(answer.text)) == (status, True)
    assert Policy.objects.count() == 3


def test_a_draft_is_put_in_force_and_an_old_version_comes_back(versions: World, signed_in: SignedIn) -> None:
    client = signed_in("operator")

    assert f'href="{HOME}3/confirm/"' in client.get(f"{HOME}3/").text
    asked = client.get(f"{HOME}3/confirm/").text
    assert f'action="{HOME}3/activate/"' in asked
    assert "For how many requests" in asked, "what changes is said before it does"
    client.post(f"{HOME}3/activate/", {"based_on": "2"})
    assert Policy.objects.get(is_active=True).version == 3
    assert "Go back to these rules" in client.get(f"{HOME}1/").text
    assert f'action="{HOME}1/roll-back/"' in client.get(f"{HOME}1/confirm/").text
    assert client.get(f"{HOME}3/confirm/").status_code == 302, "it is active already"
    client.post(f"{HOME}1/roll-back/", {"based_on": "3"})

    row = Policy.objects.get(is_active=True)
    assert (row.version, row.based_on, row.body) == (4, 1, built_in())


def test_whoever_comes_late_is_told_and_changes_nothing(versions: World, signed_in: SignedIn) -> None:
    client = signed_in("operator")
    body = json.dumps({"depth": 7})

    saved = client.post(f"{HOME}save/", {"name": "x", "body": body, "based_on": "1", "do": "save"})
    put = client.post(f"{HOME}3/activate/", {"based_on": "1"}, follow=True)

    assert saved.status_code == 409
    assert "Another version was activated" in saved.text
    assert "Another version was activated" in put.text
    assert Policy.objects.get(is_active=True).version == 2


def test_new_rules_are_tried_on_those_who_wait(
    versions: World, signed_in: SignedIn, publish: Publish
) -> None:
    versions.submit("bob", "l40s-quarter")
    publish(versions.now)
    client = signed_in("operator")
    given = {"name": "x", "body": json.dumps({"depth": 7}), "based_on": "2", "do": "confirm"}

    text = client.post(f"{HOME}save/", given).text

    assert "One waiting request was looked at" in text
    assert "Nothing would change for anybody" in unescape(text)
    assert "Activate now" in text
    assert Policy.objects.count() == 3


def test_without_a_picture_trying_says_so(versions: World, signed_in: SignedIn) -> None:
    given = {"name": "x", "body": "{}", "based_on": "2", "do": "confirm"}

    assert "no snapshot of the queue" in signed_in("operator").post(f"{HOME}save/", given).text


def test_a_version_that_cannot_decide_is_shown_with_its_faults(versions: World, signed_in: SignedIn) -> None:
    Policy.objects.filter(version=2).update(body={"depth": 0, "colour": 1})
    client = signed_in("operator")

    listed, one = client.get(HOME).text, client.get(f"{HOME}2/").text

    for text in (listed, one):
        assert "cannot decide a cycle any more" in text
        assert "<code>depth</code>" in text
    assert "Turns go by version 1 meanwhile" in listed
    assert client.get(f"{HOME}compare/?a=1&b=2").status_code == 200
    assert client.get(f"{HOME}edit/").status_code == 200


def test_the_list_takes_a_fixed_number_of_queries(versions: World, signed_in: SignedIn) -> None:
    client = signed_in("operator")

    def queries() -> int:
        with CaptureQueriesContext(connection) as seen:
            assert client.get(HOME).status_code == 200
        return len(seen)

    before = queries()
    for depth in range(10, 15):
        save_policy(
            actor=versions.user("operator"), rights=versions.rights("operator"), name="more", body={"depth": depth},
            note="", based_on=2, now=versions.now, is_active=False,
        )  # fmt: skip

    assert queries() <= before <= 20


def test_a_lease_leads_operators_to_the_rules_that_placed_it(versions: World, signed_in: SignedIn) -> None:
    lease = versions.active("bob")

    assert f'href="{HOME}2/"' in signed_in("operator").get(f"/leases/{lease.uid}/").text
    bobs = signed_in("bob").get(f"/leases/{lease.uid}/").text
    assert "policy version 2" in bobs
    assert HOME not in bobs
