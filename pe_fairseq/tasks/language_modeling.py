"""``pe_language_modeling``: stock's task, with prompts read in one pass."""

from fairseq.tasks import register_task
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask

from .prefill import PrefillGenerator


@register_task("pe_language_modeling", dataclass=LanguageModelingConfig)
class PeLanguageModelingTask(LanguageModelingTask):
    """fairseq's language modeling; generation reads a prompt in one pass.

    Data, options and results are those of ``language_modeling``, and so a checkpoint of one
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
