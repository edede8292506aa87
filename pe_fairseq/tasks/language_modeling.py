"""``pe_language_modeling``: stock's task, with prompts read in one pass, and long texts."""

from dataclasses import dataclass, field
from typing import Optional

from fairseq.tasks import register_task
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask

from . import segments
from .prefill import PrefillGenerator


@dataclass
class PeLanguageModelingConfig(LanguageModelingConfig):
    train_segment: Optional[int] = field(
        default=None,
        metadata={
            "help": "with linear attention, go over so many tokens of a text at a time, forth "
            "and back: loss and gradients of the whole text in the memory of a segment, for "
            "half as much time again (default: whole texts)"
        },
    )


@register_task("pe_language_modeling", dataclass=PeLanguageModelingConfig)
class PeLanguageModelingTask(LanguageModelingTask):
    """fairseq's language modeling; generation reads a prompt in one pass.

    Data and results are those of ``language_modeling``, and so a checkpoint of one
    task serves the other.
    """

    @classmethod
    def add_args(cls, parser):
        parser.add_argument_group(
            "pe_language_modeling",
            "Generation reads a prompt in one pass, once per sentence. --max-len-b counts the "
            "prompt's tokens too, as does --min-len: after a prompt of 100 tokens, "
            "--max-len-b 120 writes up to 20.",
        )
        super().add_args(parser)

    def build_model(self, args, from_checkpoint=False):
        """As in stock fairseq.

        Raises:
            UserError: ``--train-segment`` does not go with the model.
        """
        if self.args.train_segment is not None:
            segments.check(args, self.args.train_segment)
        return super().build_model(args, from_checkpoint)

    def train_step(self, sample, model, criterion, optimizer, update_num, ignore_grad=False):
        """As in stock fairseq, of a segment at a time where ``--train-segment`` says so."""
        if self.args.train_segment is None:
            return super().train_step(
                sample, model, criterion, optimizer, update_num, ignore_grad
            )
        model.train()
        model.set_num_updates(update_num)
        return segments.train_step(
            sample, model, criterion, optimizer, self.args.train_segment, ignore_grad
        )

    def build_generator(
        self,
        models,
        args,
        seq_gen_cls=None,
        extra_gen_cls_kwargs=None,
        prefix_allowed_tokens_fn=None,
    ):
        if seq_gen_cls is None and not getattr(args, "print_alignment", False):
            seq_gen_cls = PrefillGenerator
        return super().build_generator(
            models, args, seq_gen_cls, extra_gen_cls_kwargs, prefix_allowed_tokens_fn
        )
