"""Guessing tokens, so that one step of the model checks several.

A step with guesses draws a token at each of their places with the noise that this place of the
answer always has (`sampling.noise`), and keeps what it drew up to the first wrong guess. So an
answer is token for token what it is without guesses, greedy or drawn. A guess is right with the
probability that the model gives it, as in rejection sampling (Leviathan et al., 2023). A draft
model draws with the same noise, so that distributions d apart (total variation) agree at least
(1 - d) / (1 + d) of the time (Daliri et al., "Coupling without Communication", 2024).

* `config`: what users ask for, by vLLM's names.
* `proposer`: the interface; `ngram`, `draft_model`, `medusa` and `eagle` guess.
"""
