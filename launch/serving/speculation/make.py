"""The proposer that the settings ask for."""

from functools import partial

from launch.generator import Writer, load_directory, load_run
from launch.serving.config import EngineConfig
from launch.serving.errors import ServingError
from launch.serving.scheduler.limits import SchedulerLimits
from launch.serving.speculation.config import read_speculative_config
from launch.serving.speculation.draft_model import DraftModel
from launch.serving.speculation.eagle import EagleProposer
from launch.serving.speculation.medusa import Medusa, read_heads
from launch.serving.speculation.ngram import NgramProposer
from launch.serving.speculation.proposer import Proposer
from models.decoder.eagle import load_eagle, with_ends
from models.weights.fields import CONFIG_FILE


def make_proposer(
    config: EngineConfig, writer: Writer, mesh_text: str, limits: SchedulerLimits
) -> Proposer | None:
    """None if nothing is to be guessed. Raises LaunchError or ModelsError for a model that does not
    suit."""
    wanted = read_speculative_config(config.speculative_config)
    if wanted is None:
        return None
    if wanted.method == "ngram":
        sizes = wanted.prompt_lookup_min, wanted.prompt_lookup_max
        return NgramProposer(limits.guesses, *sizes, texts=2 * limits.slots)
    model = writer.model.config
    mesh = next(iter(writer.model.parameters.values())).sharding.mesh
    if wanted.method == "medusa":
        heads = read_heads(
            wanted.directory, limits.guesses, model.dim, model.vocab_size, model.dtype
        )
        return Medusa(heads, mesh, limits)
    if wanted.method == "eagle":
        graph, own = load_eagle(wanted.directory, model, mesh)
        return EagleProposer(graph, with_ends(own, writer.model.parameters), mesh, limits)
    is_directory = (wanted.directory / CONFIG_FILE).is_file()
    read = partial(load_directory, pad=True) if is_directory else load_run
    draft = read(wanted.directory, mesh_text).model
    longest = min([draft.config.max_seq_len, *draft.config.boundaries])
    if draft.config.vocab_size != model.vocab_size or longest < limits.context:
        raise ServingError(
            f"the draft model of {wanted.model} has {draft.config.vocab_size} tokens and a context "
            f"of {longest}; the model has {model.vocab_size}, and max_model_len is "
            f"{limits.context}. Both must know the same tokens, and the draft as long a text."
        )
    return DraftModel(draft.graph, draft.parameters, mesh, limits)
