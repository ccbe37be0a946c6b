"""What a model can be tuned for: one row per task."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from launch.data.records import Record
from launch.finetuning import letter_examples, media_examples, text_examples
from launch.finetuning.choices import read_question
from launch.finetuning.media import LETTERS
from launch.finetuning.objectives import (
    AudioClassification,
    Classification,
    ImageClassification,
    Letters,
    MaskedLanguageModelling,
    MultipleChoice,
    QuestionAnswering,
    SequenceToSequence,
)
from launch.finetuning.preferences import DirectPreference, OddsRatio
from launch.finetuning.problems import ONE_CLASS, PROBLEMS
from launch.finetuning.settings import TuningSettings
from launch.finetuning.text_examples import Reading, Row
from launch.training.objectives import LabelLoss, LanguageModelling, Objective

MakeObjective = Callable[[TuningSettings, "Subject", LabelLoss], Objective]


@dataclass(frozen=True)
class Subject:
    """The facts about a model that objectives may need."""

    vocab_size: int = 0
    mask_token: int | None = None
    blank: int | None = None  # the token of no letter
    problem: str = ONE_CLASS  # what a classifier gives, a name of PROBLEMS
    has_statistics: bool = False


@dataclass(frozen=True)
class Task:
    """One task.

    Attributes:
      head: the Architecture.task of the models that are trained.
      records: what records hold, for help and messages.
      read: a record to a row, as far as it is made at the start; None for texts, which
        `Writer.read` makes tokens of.
      objective: what is minimised.
      labels: the field with the names or numbers of classes, if there are classes.
      reference: whether the objective compares with the model that training began with.
      packs: whether labels are of tokens, so that several texts may share a row.
      texts: how many texts a row holds, each of the row's length.
      has_choices: whether a row holds a text for each choice of a question.
      has_labels: whether the loss is a cross entropy of labels.
      unit: what is counted, in messages.
      loss_unit: what the loss is a mean over, in messages.
    """

    head: str
    records: str
    read: Callable[[Record, Reading], Row | None] | None
    objective: MakeObjective
    labels: tuple[str, ...] = ()
    reference: bool = False
    packs: bool = False
    texts: int = 1
    has_choices: bool = False
    has_labels: bool = True
    unit: str = "example"
    loss_unit: str = "example"


def _sft(settings: TuningSettings, subject: Subject, of_labels: LabelLoss) -> Objective:
    return LanguageModelling(of_labels=of_labels)


def _dpo(settings: TuningSettings, subject: Subject, of_labels: LabelLoss) -> Objective:
    return DirectPreference(beta=settings.dpo_beta, label_smoothing=settings.dpo_label_smoothing)


def _orpo(settings: TuningSettings, subject: Subject, of_labels: LabelLoss) -> Objective:
    return OddsRatio(factor=settings.orpo_lambda)


def _classification(settings: TuningSettings, subject: Subject, of_labels: LabelLoss) -> Objective:
    return Classification(of_targets=PROBLEMS[subject.problem].loss(of_labels))


def _question_answering(
    settings: TuningSettings, subject: Subject, of_labels: LabelLoss
) -> Objective:
    return QuestionAnswering(of_labels=of_labels)


def _multiple_choice(settings: TuningSettings, subject: Subject, of_labels: LabelLoss) -> Objective:
    return MultipleChoice(of_labels=of_labels)


def _fill_mask(settings: TuningSettings, subject: Subject, of_labels: LabelLoss) -> Objective:
    assert subject.mask_token is not None
    return MaskedLanguageModelling(
        of_labels=of_labels,
        mask_token=subject.mask_token,
        vocab_size=subject.vocab_size,
        probability=settings.mlm_probability,
    )


def _image_classification(
    settings: TuningSettings, subject: Subject, of_labels: LabelLoss
) -> Objective:
    of_targets = PROBLEMS[subject.problem].loss(of_labels)
    return ImageClassification(of_targets=of_targets, has_statistics=subject.has_statistics)


def _audio_classification(
    settings: TuningSettings, subject: Subject, of_labels: LabelLoss
) -> Objective:
    return AudioClassification(of_targets=PROBLEMS[subject.problem].loss(of_labels))


def _sequence_to_sequence(
    settings: TuningSettings, subject: Subject, of_labels: LabelLoss
) -> Objective:
    return SequenceToSequence(of_labels=of_labels)


def _letters(settings: TuningSettings, subject: Subject, of_labels: LabelLoss) -> Objective:
    assert subject.blank is not None
    return Letters(blank=subject.blank)


TASKS: Mapping[str, Task] = {
    "sft": Task(
        "text-generation",
        "messages; or prompt and completion; or text. The loss covers only the answers",
        None,
        _sft,
        unit="token",
        loss_unit="token",
    ),
    "dpo": Task(
        "text-generation",
        "prompt, chosen and rejected, as text or as messages",
        text_examples.preference,
        _dpo,
        reference=True,
        texts=2,
        has_labels=False,
        unit="pair",
        loss_unit="pair",
    ),
    "orpo": Task(
        "text-generation",
        "prompt, chosen and rejected, as text or as messages",
        text_examples.preference,
        _orpo,
        texts=2,
        has_labels=False,
        unit="pair",
        loss_unit="pair",
    ),
    "text-classification": Task(
        "text-classification",
        "text (and text_pair), and label: a class, a list of classes, or a number",
        text_examples.labelled_text,
        _classification,
        labels=text_examples.LABELS,
    ),
    "token-classification": Task(
        "token-classification",
        "tokens, a list of words, and as many labels",
        text_examples.labelled_words,
        _classification,
        labels=text_examples.TOKEN_LABELS,
        packs=True,
        loss_unit="word",
    ),
    "question-answering": Task(
        "question-answering",
        "question, context, and answers with text and answer_start",
        text_examples.answered_question,
        _question_answering,
    ),
    "multiple-choice": Task(
        "multiple-choice",
        "a text (question, context, sent1 and others), choices (or endings, or ending0 to ending3) "
        "and label (or answer, or answerKey): a choice's number, name or text",
        read_question,
        _multiple_choice,
        has_choices=True,
        loss_unit="question",
    ),
    "fill-mask": Task(
        "fill-mask",
        "text",
        text_examples.hidden_text,
        _fill_mask,
        packs=True,
        loss_unit="hidden token",
    ),
    "text-to-text": Task(
        "text2text-generation",
        "source and target text",
        text_examples.source_and_target,
        _sequence_to_sequence,
        texts=2,
        loss_unit="token",
    ),
    "image-classification": Task(
        "image-classification",
        "image and label, as of texts; or a folder of images for each class",
        media_examples.labelled_image,
        _image_classification,
        labels=text_examples.LABELS,
    ),
    "audio-classification": Task(
        "audio-classification",
        "audio, a sound file, and label, as of texts; or a folder of sounds for each class",
        media_examples.labelled_sound,
        _audio_classification,
        labels=text_examples.LABELS,
    ),
    "speech-recognition": Task(
        "automatic-speech-recognition",
        "audio, a sound file, and text; or a folder of sounds with a text file for each",
        media_examples.transcribed_sound,
        _sequence_to_sequence,
        loss_unit="token",
    ),
    LETTERS: Task(
        LETTERS,
        "audio, a sound file, and text; or a folder of sounds with a text file for each",
        letter_examples.spelled_sound,
        _letters,
        has_labels=False,
        loss_unit="letter",
    ),
}


def find_labels(task: Task, records: list[Record]) -> list[Any]:
    """The labels of records that have any: of each record the first field, as it will be read."""
    fields = [map(record.fields.get, task.labels) for record in records]
    labels = [next((value for value in of if value is not None), None) for of in fields]
    return [label for label in labels if label is not None]
