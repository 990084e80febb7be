"""Check what vLLM and our drafter in it need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from duodec.cli.checks import Check, failed
from duodec.cli.checks.machine import gpu_is_there
from duodec.errors import DuodecError
from duodec_vllm.settings import Settings


def checks(target: str, draft: str | None, *, offline: bool) -> list[Check]:
    """Run the checks of `duodec doctor --vllm`; a draft named here overrides the settings."""
    from duodec.machine.topology import Topology
    from duodec.models import resolve, resolve_folder
    from duodec.models.folders import read_json
    from duodec.models.vocabularies import difference
    from duodec_vllm import opening
    from duodec_vllm.vocabulary import draft_facts

    settings = Settings.read()
    if draft not in (None, "auto"):
        settings = replace(settings, draft=draft)
    found: list[Check] = []

    def check(name: str, words: Callable[[], str]) -> None:
        """Check something whose function returns a description, or raises."""
        try:
            found.append(Check(name, "ok", words()))
        except DuodecError as error:
            found.append(failed(error, name))

    def vocabularies() -> str:
        folder = resolve_folder(target, offline=offline).path
        num_vocab = int(read_json(folder / "config.json").get("vocab_size", 0))
        facts = draft_facts(resolve(settings.draft, offline=offline).path)
        tokenizer = num_vocab or facts.num_vocab
        found = difference(opening.open_tokenizer(str(folder), tokenizer), facts)
        if found is not None:
            return f"{found}: the draft's text is tokenised anew, and accepted less often"
        return f"{min(tokenizer, facts.num_vocab)} tokens, all equal"

    def cores() -> str:
        host = opening.Host(is_on_cpu=not gpu_is_there())
        topology = Topology.read()
        chosen = opening.draft_cores(settings, host, topology)
        return f"the drafter's: {', '.join(map(str, chosen))} of {len(topology.cores)}"

    check("vLLM", lambda: _version(opening.check_version(), opening.TESTED))
    if settings.has_draft:
        check("vocabularies", vocabularies)
        check("cores", cores)
    else:
        found.append(
            Check("draft", "warn", "none: drafts come from earlier text only", "name one: --draft")
        )
    return found


def _version(found: str, tested: str) -> str:
    is_tested = found.partition("+")[0] == tested
    return f"{found}, " + ("which is tested" if is_tested else f"whose hook is that of {tested}")
