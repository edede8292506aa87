"""Generation after a prompt that the model reads in one pass, once per sentence.

Stock fairseq feeds a prefix token by token, to every beam. Its search stays as it is, with
its penalties, random draws and finished sentences: while the prompt lasts, it is told the log
probability of each token from that one pass.
"""

import math

import torch
from fairseq.sequence_generator import EnsembleModel, SequenceGenerator

from ..models.decoder import PositionDecoder

# log probabilities that are held at once
LARGEST_BLOCK = 2**22


class PrefillEnsemble(EnsembleModel):
    """Language models that read a prompt in one pass.

    Attributes:
        prompt: ``(B, N)``, what each sentence of the next search starts with: the start symbol
            and tokens that the search forces. No padding; None to read token by token.
    """

    def __init__(self, models):
        super().__init__(models)
        self.prompt = None
        self._sentences = None
        self._of_prompt = None
        self._after_prompt = None

    def forward_decoder(self, tokens, encoder_outs, incremental_states, temperature=1.0):
        """Log probabilities of the token after ``tokens``.

        Args:
            tokens: ``(B · beam, L)``, L growing by one from call to call.

        Returns:
            ``(B · beam, vocabulary)``, within the prompt -inf but for the prompt's next token;
            and None, or attention, which our models lack.
        """
        if self.prompt is None:
            return super().forward_decoder(
                tokens, encoder_outs, incremental_states, temperature
            )
        length = tokens.size(1)
        if length == 1:
            self._read_prompt(incremental_states, temperature, rows=len(tokens))
        if length < self.prompt.size(1):
            forced = self.prompt[:, length, None]
            others = torch.full_like(self._after_prompt, -math.inf)
            log_probs = others.scatter(1, forced, self._of_prompt[:, length - 1, None])
            return log_probs[self._sentences], None
        log_probs = self._after_prompt[self._sentences]
        super().reorder_incremental_state(incremental_states, self._sentences)
        self.prompt = None
        return log_probs, None

    def reorder_incremental_state(self, incremental_states, new_order):
        """Give each beam another's state; within the prompt a state is a sentence's."""
        if self.prompt is None:
            super().reorder_incremental_state(incremental_states, new_order)
        else:
            self._sentences = self._sentences[new_order]

    def _read_prompt(self, incremental_states, temperature, rows):
        """Fill the states, a row per sentence, and keep what search will ask for."""
        batch, length = self.prompt.shape
        features = [
            model.decoder(self.prompt, incremental_state=state, features_only=True)[0]
            for model, state in zip(self.models, incremental_states)
        ]
        vocabulary = len(self.single_model.decoder.dictionary)
        size = max(1, LARGEST_BLOCK // (batch * vocabulary))
        following = self.prompt.roll(-1, dims=1).split(size, dim=1)
        of_prompt = []
        for tokens, *block in zip(following, *(each.split(size, dim=1) for each in features)):
            log_probs = self._log_probs(block, temperature)
            of_prompt.append(log_probs.gather(2, tokens.unsqueeze(2)).squeeze(2))
        self._of_prompt = torch.cat(of_prompt, dim=1)
        self._after_prompt = log_probs[:, -1]
        sentences = torch.arange(batch, device=self.prompt.device)
        self._sentences = sentences.repeat_interleave(rows // batch)

    def _log_probs(self, features, temperature):
        """Of the models' mean, from the features ``(B, L, M)`` of each: ``(B, L, V)``."""
        log_probs = [
            model.get_normalized_probs(
                (model.decoder.output_layer(of_model) / temperature, None), log_probs=True
            )
            for model, of_model in zip(self.models, features)
        ]
        return torch.logsumexp(torch.stack(log_probs), dim=0) - math.log(self.models_size)


class PrefillGenerator(SequenceGenerator):
    """Stock's generator, its hypotheses and scores, with a prompt read in one pass.

    Of prefixes of unequal lengths the shortest length is read at once, the rest token by token
    as in stock fairseq: at that time the shorter sentences are being written.
    """

    def __init__(self, models, tgt_dict, **options):
        super().__init__(PrefillEnsemble(models), tgt_dict, **options)
        self.reads_at_once = all(isinstance(m.decoder, PositionDecoder) for m in models)

    def _generate(self, sample, prefix_tokens=None, constraints=None, bos_token=None):
        self.model.prompt = None
        if prefix_tokens is not None and self.reads_at_once:
            start = self.eos if bos_token is None else bos_token
            self.model.prompt = self._prompt(sample["net_input"], prefix_tokens, start)
        return super()._generate(sample, prefix_tokens, constraints, bos_token)

    def _prompt(self, net_input, prefix_tokens, start):
        """``start`` and as many tokens as all prefixes have and search will force: (B, N)."""
        if self.match_source_len:
            limit = int(net_input["src_lengths"].max())
        else:
            source = net_input["src_tokens"].size(1)
            limit = min(int(self.max_len_a * source + self.max_len_b), self.max_len - 1)
        common = int(prefix_tokens.ne(self.pad).all(dim=0).long().cumprod(dim=0).sum())
        starts = prefix_tokens.new_full((len(prefix_tokens), 1), start)
        return torch.cat([starts, prefix_tokens[:, : min(common, limit)]], dim=1)
