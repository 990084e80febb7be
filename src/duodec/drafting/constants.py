"""State every tuned constant of drafting, planning and methods: what it means, and what chose it.

A constant stands here if another value would also be correct, but slower or more wasteful. Settings
of published methods, and formats, stand with them. "By judgement" means that no measurement of it
is on record. Commits that are named hold the figures.
"""

from __future__ import annotations

# --- Measurements: how many are kept, how many make one, how fast old ones fade

WINDOW = 32
"""Latest measurements whose median is taken. By judgement."""
LATELY = 8
"""Latest forward passes without a draft, by which those of all widths are scaled, since a machine
that warms up makes all faster. By judgement; a wider window judged early drafts by a cold machine
(7f73374d)."""
FEWEST = 3
"""Forward passes that make a median; one that was measured before the first text counts as so many.
By judgement."""
SOONEST = 2
"""Rounds that tell something: forward passes without a draft before the first draft, and rounds
after which a hopeless choice is dropped. By judgement, within the bound of two forward passes that
the tests of steep curves (`python -m benchmarks grid`) set."""
FADE = 0.9
"""Of a rate that follows the text (a request's, a batch's, a completion's), with each round. By
judgement."""
FADE_OF_TRIALS = 0.94
"""Of the rate of a choice of sources, with each round: some 16 rounds count. By judgement."""
FADE_OF_PROBES = 0.85
"""The same where simpler choices are probed: probes are few, so that each says more. By
judgement."""
SLOW_FADE = 0.98
"""Of how often a source without a draft model is right, with each round. By judgement."""
FADE_OF_SUPPLEMENT, FADE_OF_WAITS = 0.97, 0.99
"""Of what heads brought beside others, and of what waits for draft steps promised and brought, with
each round. By judgement; 0.98 for both moves no curve of the simulated bed by more than 0.5%, and
tasks by more."""
WINDOW_OF_ROWS = 64
"""Forward passes to which the line of a batch's rows is fitted. By judgement."""

# --- Trials: what may pay is tried, judged and rested (`planning/trial.py`)

FIRST_PAUSE, MAX_PAUSE = 32, 512
"""Rounds for which something that did not pay rests at first, and at most: trials take a twentieth
of the time, later nothing that shows. By judgement."""
LOOK_AGAIN = 8
"""Rounds after which something is looked at again: simpler choices after a choice that has paid,
whether any draft can pay, a forward pass wider than those measured. Of the first, 9eedaa15: with
32 rounds a 4090 decodes mathematics at 1.37 times plain decoding's speed, with 8 at 1.72.
The others by judgement."""
TRIAL = 24
"""Rounds after which `auto` judges a choice, few of which may have had a draft. By judgement."""
TRIAL_OF_BATCH = 4
"""Forward passes of a small batch after which a choice is judged. By judgement."""
PROBE_EVERY = 48
"""Rounds of drafting, or the time that so many take of plain decoding, between two rounds that
measure plain decoding: 2% of the time. By judgement."""
FIRST_REST = 16
"""Rounds before a draft model is tried that takes cores or turns from the target. By judgement; a
completion that is shorter is not slowed by reading its prompt twice (abaf7fbf)."""
MARGIN, MARGIN_OF_BATCH = 0.97, 1.02
"""How fast a choice must be beside simpler ones. What drafts nothing may take a moment longer; of a
batch, a smaller gain cannot be told from noise. By judgement."""
HOPELESS, HOPELESS_IN_TURNS, HOPELESS_OF_BATCH = 0.6, 0.4, 0.75
"""Of the rate of simpler choices: what is slower is not tried to the end. A draft in turns that is
refused has stopped the target (d674739e); each forward pass of a batch gives every request a token,
so that few are much slower. By judgement."""
BACKOFF_OF_BATCH = 4
"""How much longer the next rest of a batch is: a trial that several requests fail together is not
by chance. By judgement."""
SAVED, LEAST_SAVED = 0.2, 0.02
"""The share of decoding's time that a draft model is expected to save before it is tried, and at
least. By judgement: what is never tried is never measured."""
FIRST_PROBE = 4
"""Rounds of drafting before the first that measures plain decoding, where nobody names another
number. By judgement."""

# --- The allowance: what drafts may lose

ALLOWANCE, ALLOWANCE_IN_TURNS, MAX_ALLOWANCE = 1.0, 4.0, 16.0
"""Forward passes of plain decoding that drafts may lose before they have gained any, the same of a
draft model in turns, which has to be tried against its cost, and after they have gained much. On
steep curves `auto` loses 2 in 50 tokens at most (`python -m benchmarks grid`)."""
RUINED, REGROWTH = -0.2, 0.02
"""Of the allowance: below it nothing is drafted, and so much grows back with each round. By
judgement; on the same grid."""
CAUTION = 0.35
"""How much more a draft must promise for each forward pass that was lost. By judgement; on the same
grid."""
MOST_LOST, BET = 2.0, 0.25
"""Forward passes that one draft may lose of the allowance, and as many more for a quarter of the
tokens that it promises. On a CPU's curve, 14 prompts of a 1.5B: 1.26 times plain decoding, 1.16
without (2d49d34b)."""

# --- What a forward pass costs before it is measured

UNKNOWN_FORWARD_S, UNKNOWN_STEP_S = 0.03, 0.003
"""Seconds expected of the first forward pass of a target and of a draft model. By judgement."""
FIRST_TOKENS = 7
"""Draft tokens of the first forward pass where nothing is known. By judgement."""
CLIFF = 0.4
"""Of a pass without a draft: what each row beyond the widest measured may cost, since a plateau may
end in a cliff. On one of 27 ms to 32 rows and 13 ms for each row more, the first 20 tokens came at
0.6 of plain decoding's speed without it (7aa716de)."""
STEEPEST, STEP = 1.14, 1.75
"""T(n) grows as n ** 1.14 at most, or by a step, as far as few passes can tell. By judgement."""
PLATEAU = 1.15
"""A wider pass that took no more, in times of the widest before, did not cost much more. By
judgement."""
NEAR = 2048
"""Tokens of a text that change a forward pass by a few per cent, measured on CPUs (11f065dd)."""

# --- Batches

PATIENCE_OF_BATCH, LEAST_PATIENCE_S, MOST_PATIENCE_S = 0.25, 0.002, 0.02
"""Of a forward pass, for which it waits for requests that are not ready, and the least and the most
seconds. By judgement."""
FIRST_BUDGETS, LEAST_SHARE = (4, 12, 28), 2
"""Draft tokens of the first forward passes of a batch that have any, and of each request in them at
least; of a request alone, the budget while no draft is measured. By judgement."""
ROW_PRIOR, ROW_PRIOR_WEIGHT = 0.25, 8.0
"""What one more row is expected to cost, in average costs of a row, and the squared rows that this
counts as. By judgement: what is never tried is never measured."""

# --- Acceptance: how likely a candidate is to be right

NUM_BINS = 12
"""Of confidence, finer near 0, that are judged apart. By judgement."""
PRIOR_WEIGHT = 6.0
"""Labels that a prior counts as. By judgement."""
MODEL_LABEL = 0.1
"""The weight of a label of a draft model's candidate: what softmax says is nearly how often it is
right, and few labels say less. 368 and 695 places of Qwen2.5-Coder and of SmolLM2: the log loss of
the first candidate is 0.368 and 0.467 as the model says, 0.397 and 0.484 with whole labels, 0.376
and 0.471 with tenths (3e9c650b)."""
MEMORY = 400.0
"""Labels of a bin, beyond which old ones fade: what is new always counts a little. By judgement."""
EXPECTED = (0.4, 0.1, 0.05, 0.05)
"""How often a draft model's first, second, third and a later candidate are right, before anything
is learned. By judgement."""
HOPED, HOPED_WEIGHT = (0.7, 0.1, 0.05, 0.05), 16.0
"""The same of a draft model in turns, whose labels cost something, and the labels that it counts
as. By judgement: the first label must not end its trial (d674739e)."""

# --- Mixing what several sources say

LEAST_OF_LOGIT, MOST_LOGIT = 1e-4, 12.0
"""Of a likelihood, and of what it lacks to 1, for a logit; of a mixture's logit. By judgement."""
MIXING_RATE, MOST_SQUARES = 0.1, 300.0
"""Of AdaGrad's steps, and of a weight's squared gradients, beyond which old ones fade. By
judgement."""
MIXING_WEIGHTS = (
    *(0.1, -0.1, 0.2, -0.2, -0.2, 0.1),  # by kind of source: of its logit
    *(0.4, -0.5, 0.5, -0.5, -0.5, 0.4),  # where it proposes the token
    *(-1.7, -0.1, -0.3, -0.1, -0.1, -1.7),  # where it proposes others
    *(0.9, -1.7),  # of the joint likelihood, and of the rival
)
"""The first weights. Learned where SmolLM2 was drafted for by the shipped draft and
Qwen2.5-Coder-1.5B by its 0.5B, on the first 112 and 49 prompts of Spec-Bench. The two agree to 0.4,
and either's serve the other as well. A datastore is taken for earlier texts, heads for a draft
model (ffae947e)."""
SPREAD = 0.35
"""Of the likelihood q that a token follows again, the part q ** SPREAD is drawn by the noise. Fits
1,700 matches of 1 to 24 tokens, sampled at temperatures 0.7 and 1."""

# --- Sources

LEAST_VALUE = 1e-3
"""What is less likely is worth neither a row of the target nor a forward pass of the draft model.
By judgement."""
LONE_SHARE = 0.5
"""Of that, from which one source alone may propose it. Labels of seven tasks and two models: what
one source alone proposes comes true 0.6 times as often as it says (abaf7fbf)."""
MAX_MATCH = 24
"""Tokens of a match in a text, and of what followed it. By judgement."""
MAX_PLACES = 256
"""Latest places of a match that are counted. By judgement: the time of a search."""
MIN_SHARE = 0.05
"""Of the places of a match, that go on with a token that is proposed. By judgement."""
OWN_EXPECTED = (0.4, 0.6, 0.8, 0.9, 0.95)
EARLIER_EXPECTED = (0.2, 0.45, 0.7, 0.85, 0.95)
"""How often matches of 1, 2 or 3, 4 to 7, ... tokens go on as before, in the same text and in
earlier completions. Measured: 0.37 and 0.18 after one token, 0.67 and 0.45 after two (ffae947e)."""
AFTER_ONE = 0.5
"""How often what a row says after a context of one token comes true, of what it promises. Measured
on other texts (abaf7fbf)."""
BY_RANK = (0.4, 0.15, 0.08, 0.05, 0.04, 0.03, 0.02, 0.02)
"""How often a row's candidates are right where it tells no more. By judgement."""
REST_TOKENS, REST_SPAN, REST_LEAST_SPAN, REST_LENGTH = 64, 16, 2, 10
"""Tokens that a datastore proposes, of the suffix that it is searched for at most and at least, and
of a continuation: as REST's release has them (2311.08252)."""
MOST_SEED, LEAST_SEED = 8, 0.5
"""Tokens of heads that the draft model starts from, and how likely all together must be. By
judgement."""

# --- Draft steps: whether to wait for one

MAX_DRAFT = 80
"""Draft tokens in a forward pass, at most. By judgement; the planner decides how many."""
PATIENCE_FOR_STEPS = 1.75
"""How much faster than decoding a wait for a draft step must yield tokens. By judgement; what waits
bring is learned (ec8e79c0)."""
NODE_S = 1e-5
"""Seconds to find one more candidate and to send it. Measured."""
HANDOVER_S = 3e-4
"""Seconds from one process to the other. Measured: 0.2 ms."""
NO_TREE = 0.25
"""Likelihood that counts for a tree of one token, where little else is known. By judgement; without
it a tree was taken for ten tokens long, and waited for in vain (525de61d)."""
PRIOR_TOKENS, PRIOR_OF_WAITS = 2.0, 1.0
"""Tokens that drafts, and waits for drafts, count as having promised and brought. By judgement."""
LEAST_TRUST = 0.05
"""The least share of what waiting promises that it is believed to bring: what is never tried is
never measured. By judgement."""
READ_WITH_STEP = 16
"""New tokens of a text that a draft model reads with a step, at no cost that counts. By
judgement."""
READ_IN_STEP = 4.0
"""Tokens that it reads in the time of a step, at least. Measured: 4 to 16."""
PATIENCE = 3.0
"""A draft may take so many times its expected time, then it is left. By judgement."""
LEAST_WAIT_S = 0.3
"""Seconds for which a draft of unknown cost is expected, and for which one on the target's cores is
waited. By judgement."""
FRESH_S = 0.002
"""Seconds after which what the drafter made is looked at again. By judgement."""

# --- The host's work between two forward passes

LEARNING_SHARE, KEEPING_SHARE = 0.03, 0.01
"""Of a forward pass, for finding what the target held likely in its rows, and for keeping them
until the next pass. Of rows of 151,936 logits these take 40 and 14 us a row (5f9db554); the shares
by judgement."""
NUM_REHEARSED = 2
"""Verdicts that are rehearsed before a forward pass ends. By judgement."""
FEW_WINDOWS = 16
"""Up to so many continuations are counted faster one by one than by columns. Measured."""

# --- The draft model's tree

LEAVES = (1, 2, 4, 8)
"""Leaves that a step may expand: the drafter has sequence ids for no more. By judgement."""
CANDIDATES_OF_LEAF = 16
"""Of each leaf. In place of 8 they bring 7% at 25 ms a pass and 8% at 100 (9495f03a, 7 prompts)."""
LEAST_CONFIDENCE = 0.003
"""Of a candidate that is kept. By judgement."""
MAX_EXPANDED, MAX_TREE_DEPTH = 120, 32
"""Nodes that are expanded under a text, and their depth, at most. By judgement; each may be a leaf,
and leaves cost sequence ids."""
TWICE_THE_LEAVES = 1.4
"""What twice the leaves are expected to cost, before they are measured. By judgement."""
FEW_CHAINS, CHAIN_EVERY = 4, 16
"""Of each length of chains by mask tokens so many steps are tried at first, and then one among so
many. By judgement."""
FIRST_TRUST, NUM_GUESSES = 0.7, 64
"""Of guesses by mask tokens, before any is compared, and how many are. By judgement."""

# --- Memory

MAX_STORED = 1 << 18
"""Tokens of earlier completions and rows of the target, of all owners: as many as tokens in the
largest vocabularies. By judgement."""
MAX_CONTEXTS = 1 << 13
"""Latest contexts of two tokens, and of three, whose rows are kept. By judgement."""
LEAST_STORE = 1 << 10
"""What a store counts for, however little it holds. By judgement."""
