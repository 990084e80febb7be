"""State every tuned constant of drafting, planning and methods: what it means, and what chose it.

A constant belongs here if another value would also be correct, but slower or more wasteful.
Settings of published methods, and formats, stand with the code that uses them. "By judgement" means
that no measurement chose it. Named commits hold the figures. "Doubled" says what `auto` gains or
loses on average with twice the value, or for a fade twice its distance from 1
(`python -m benchmarks ablation`, benchmarks/results/ablation.json).
"""

from __future__ import annotations

# --- Measurements: how many are kept, how many make one, how fast old ones fade
#
# A fade is the factor by which older observations lose weight with each new one: about
# 1 / (1 - fade) of them count (0.9: 10, 0.92: 12, 0.95: 20, 0.98: 50). Larger fades are steadier,
# and slower to follow a change of the text.

WINDOW = 32
"""The latest measurements that count: of times, whose median is taken, of the rows of batches, to
which a line is fitted, and of guesses by mask tokens. Larger: less noise, but a lasting change is
noticed later. By judgement. Doubled: 0.0%."""
RECENT_PLAIN_PASSES = 8
"""The latest forward passes without a draft whose median scales the cost of every width. Larger:
early drafts are judged by a machine that was still cold (7f73374d). Smaller: one slow pass shifts
all widths. By judgement. Doubled: nothing."""
MIN_PASSES_OF_WIDTH = 3
"""The forward passes of one width before its own median is believed; one that was measured before
the first text counts as this many. Each length of chains by mask tokens is first tried so often,
too. Larger: outliers hurt less, but a real step of the cost is believed later. By judgement.
Doubled: nothing."""
MIN_ROUNDS = 2
"""The rounds that say something: forward passes without a draft before the first draft, and rounds
of a hopeless choice before it is dropped. Larger: safer verdicts, but each bad choice costs one
more round. By judgement, within the bound of two forward passes that the tests of steep curves
(`python -m benchmarks grid`) set. Doubled: -2.2%."""
FADE = 0.92
"""Of a rate that follows the text: that of a choice of sources, of a request, a batch, a
completion. By judgement. Doubled: -0.1%."""
SLOW_FADE = 0.98
"""Of what is seen in few rounds: how often a source without a draft model is right, what heads add
to other sources, and what waits for draft steps bring. By judgement. Doubled: 0.0%."""

# --- Trials: what may pay is tried, judged and rested (`planning/trial.py`)

FIRST_PAUSE, MAX_PAUSE = 32, 512
"""The first and the longest rest of a choice that did not pay, in rounds. A larger first one wastes
fewer trials, but a text that becomes easy is noticed later. With a larger maximum failing trials
cost less in long texts, but drafts may stay off for as long. Trials take a twentieth of the time,
later a negligible part. By judgement. Doubled: -0.8%, nothing."""
LOOK_AGAIN_AFTER = 8
"""The rounds after which a verdict that few measurements back is looked at again: that no draft can
pay, that a choice which had paid is slower than another one that drafts. Smaller: a change is
noticed sooner, at the cost of looking. A rest of 32 rounds in the last case has a 4090 decode
mathematics at 1.37 times plain decoding's speed, 8 at 1.72 (9eedaa15). Doubled: -0.6%."""
TRIAL_ROUNDS = 24
"""The rounds of a trial before its verdict, of which few may have had a draft; for each round of
plain decoding that it lost, the choice rests as many. Larger: fewer wrong verdicts, but a choice
that does not pay costs more before it rests, and a text that becomes easy is noticed later. By
judgement. Doubled: nothing."""
TRIAL_PASSES_OF_BATCH = 4
"""The same as TRIAL_ROUNDS for a small batch, in forward passes: each gives a sample a request, so
few suffice. By judgement. Doubled: -0.4%."""
PROBE_EVERY = 48
"""The rounds of drafting, in the time that plain decoding takes for as many, between two rounds
that measure plain decoding; the draft steps between two of the worse length of chains by mask
tokens. Smaller: the comparison is fresher, but probes cost more (1 of 48 is 2% of the time). By
judgement. Doubled: 0.0%."""
REST_BEFORE_TRIAL = 16
"""The rounds before drafts that take the target's cores are first tried. Larger: a short completion
never pays for reading its prompt twice, but a long one gains later (abaf7fbf). By judgement.
Doubled: nothing."""
MARGIN, MARGIN_OF_BATCH = 0.97, 1.02
"""How many times as fast as simpler choices a choice must be. Below 1 a tie goes to drafting, which
may lose 3%; above 1 smaller gains are given up, since in a batch they cannot be told from noise. By
judgement. Doubled: -3.0%, -2.3%."""
HOPELESS_BELOW = 0.7
"""A trial ends after two rounds if it is slower than this share of the best simpler rate. Larger:
bad trials end sooner, but a slow start ends good ones, too. By judgement. Doubled: -6.0%."""
BACKOFF_OF_BATCH = 4
"""Each rest of a batch is this many times as long as the one before; a lone request's is twice as
long. Larger: fewer failing trials, but a changed batch is noticed later. A trial that several
requests fail together does not fail by chance. By judgement. Doubled: nothing."""
EXPECTED_SAVING = 0.2
"""The share of decoding's time that a draft model is expected to save before it is tried. It reads
the prompt once that share of the time covers the reading. Larger: it is tried sooner, and more
prefill is wasted. By judgement: what is never tried is never measured. Doubled: 0.0%."""

# --- The allowance: what drafts may lose

ALLOWANCE, ALLOWANCE_IN_TURNS, MAX_ALLOWANCE = 1.0, 4.0, 16.0
"""Drafts keep a balance, in forward passes of plain decoding: what they may still lose. It begins
with the first value, or with the second for a draft model in turns, which has to be tried against
its cost. Gains raise it to the third at most. Larger first values: wider early drafts and larger
possible losses; a larger maximum: past gains pay for a longer bad stretch. On steep curves `auto`
loses 2 in 50 tokens at most (`python -m benchmarks grid`). Doubled: -0.1%, nothing, nothing."""
ALLOWANCE_REGROWTH = 0.02
"""Without a balance only plain decoding runs, and each round gives back this much, until the first
balance is reached. Larger: drafts return sooner, and lose more on hopeless texts. By judgement; on
the same grid. Doubled: -0.1%."""
CAUTION = 0.35
"""A draft must promise this much more, above plain decoding, for each forward pass that the balance
is below 1. Larger: after losses only drafts that are nearly certain are scored. By judgement; on
the same grid. Doubled: -0.9%."""
MAX_LOSS, LOSS_PER_PROMISED_TOKEN = 2.0, 0.25
"""A forward pass may in the worst case take as many plain ones more as the balance, at most the
first value, and this share of the tokens that it promises, again at most the first value. Larger:
wider drafts where costs are unknown, and larger single losses. On a CPU's curve, 14 prompts of a
1.5B: 1.26 times plain decoding, 1.16 without (2d49d34b). Doubled: -0.3%, -0.1%."""

# --- What a forward pass costs before it is measured

UNKNOWN_FORWARD_S, UNKNOWN_STEP_S = 0.03, 0.003
"""The expected seconds of the first forward passes of a target and of a draft model. Only their
ratio and only the first decisions depend on them. By judgement. Doubled: nothing, nothing."""
FIRST_TOKENS = 7
"""The most draft tokens of a forward pass while nothing is measured, as in vLLM's first step.
Larger: a cliff of the cost can hurt the first one more. By judgement. Doubled: nothing."""
CLIFF_PER_ROW = 0.4
"""The share of a pass without a draft that each row beyond the widest measured may cost, in the
worst case: a plateau may end in a cliff. Larger: widths grow more slowly. On a plateau of 27 ms to
32 rows and 13 ms for each row more, the first 20 tokens came at 0.6 of plain decoding's speed
without it (7aa716de). Doubled: +0.2%."""
MAX_COST_STEP = 1.75
"""While a width was measured less often than MIN_PASSES_OF_WIDTH times, it is believed to cost at
most as many times as much as the next narrower one, or as many times as it has more rows. Larger:
one slow pass can condemn a width. By judgement. Doubled: nothing."""
SIMILAR_LENGTH = 2048
"""The time of plain decoding is inferred from a pass with a draft only if the text differs by at
most this many tokens: that changes a pass by a few per cent, measured on CPUs (11f065dd). Larger:
fewer probes, more bias. Doubled: nothing."""

# --- Batches

PATIENCE_OF_BATCH, MIN_PATIENCE_S, MAX_PATIENCE_S = 0.25, 0.002, 0.02
"""A forward pass waits this share of its usual time for requests that are not ready, within these
bounds in seconds. Larger: fuller batches, but ready requests stand still. By judgement. Doubled:
nothing, nothing, nothing."""
FIRST_BUDGETS, MIN_FIRST_BUDGET = (4, 12, 28), 2
"""The draft tokens of the first, second and third forward pass of a batch that has any, and the
fewest of a request in them. A single request has the first one while no draft is measured. Larger:
the cost of rows is learned sooner, but these passes may be slow. By judgement. Doubled: -0.8%,
+0.2%."""
ROW_PRIOR = 0.25
"""Until rows vary, one more is expected to cost this share of an average row. Larger: a batch may
never try drafts. By judgement: what is never tried is never measured. Doubled: +0.7%."""

# --- Acceptance: how likely a candidate is to be right

NUM_BINS = 12
"""The bins of confidence in which labels are counted, finer near 0. More: finer calibration, but
fewer labels in each. By judgement. Doubled: 0.0%."""
PRIOR_WEIGHT = 6.0
"""The labels that a prior counts as, and the squared rows that ROW_PRIOR does. Larger: a source's
own confidence is believed for longer. With 8 for rows, batches of 2 to 8 on five curves are 1.9%
slower. Doubled: -1.0%."""
LABEL_WEIGHT_OF_MODEL = 0.1
"""A label of a draft model's candidate has this weight. What softmax says is nearly how often it is
right, and few labels say less. Measured at 368 and 695 places of Qwen2.5-Coder and of SmolLM2: the
log loss of the first candidate is 0.368 and 0.467 as the model says, 0.397 and 0.484 with whole
labels, 0.376 and 0.471 with tenths (3e9c650b). Doubled: -0.3%."""
MAX_LABELS = 400.0
"""At this many labels the counts of a bin are halved, so that a new one always counts a little.
Larger: steadier; smaller: it follows the text. By judgement. Doubled: nothing."""
EXPECTED_IN_TURNS = (0.7, 0.1, 0.05, 0.05)
"""How often the first, second, third and a later candidate of a draft model in turns are right,
until some were labelled: nothing is labelled unless a step is asked for. With EXPECTED_BY_RANK in
its place Qwen's pair on a card is 1.0 to 1.6% slower on three curves of five."""
PRIOR_WEIGHT_OF_RANKS = 16.0
"""The sets of a draft model's candidates that these priors count as. Larger: the drafter is waited
for as readily for longer, and its first label does not end its trial (d674739e). Doubled: 0.0%."""

# --- Mixing what several sources say

MIXING_RATE, MAX_SQUARES = 0.1, 300.0
"""The rate of AdaGrad's steps, and the sum of a weight's squared gradients beyond which old ones
fade. A larger rate learns faster and jitters; a larger sum makes later steps smaller. By judgement.
Doubled: -0.9%, nothing."""
MIXING_WEIGHTS = (
    *(0.1, -0.1, 0.2, -0.2, -0.2, 0.1),  # for the logit of each kind of source
    *(0.4, -0.5, 0.5, -0.5, -0.5, 0.4),  # for each kind that proposes the token
    *(-1.7, -0.1, -0.3, -0.1, -0.1, -1.7),  # for each kind that proposes others
    *(0.9, -1.7),  # for the joint likelihood and the rival
)
"""The first weights. They were learned with SmolLM2 and the shipped draft, and with
Qwen2.5-Coder-1.5B and its 0.5B, on the first 112 and 49 prompts of Spec-Bench. The two agree to
0.4, and each serves the other pair as well. The weights of earlier texts serve for a datastore,
those of a draft model for heads (ffae947e). Doubled: +0.4%."""
NOISE_POWER = 0.35
"""If a token follows again with likelihood q, the noise draws the part q ** NOISE_POWER. This fits
1,700 matches of 1 to 24 tokens, sampled at temperatures 0.7 and 1. Doubled: nothing."""

# --- Sources

MIN_VALUE = 1e-3
"""The least likelihood that counts: of a node that is worth a row of the target or a forward pass
of the draft model, of a candidate that is kept, and in a logit that is mixed. Smaller: larger trees
and messages, more time to search. Above 100 tokens a second NODE_S sets the bound. By judgement.
Doubled: -0.1%."""
MAX_MATCH = 24
"""The most tokens of a match in a text, of its continuation, and of a path of the draft model.
Larger: longer copies, longer searches. By judgement. Doubled: 0.0%."""
MAX_PLACES = 256
"""The latest places of a match that are counted. Larger: better frequencies, in time that grows
with them. By judgement. Doubled: nothing."""
MIN_SHARE = 0.05
"""The least share of a match's places that continue with a proposed token. Larger: smaller trees
without rare continuations. By judgement. Doubled: -0.1%."""
OWN_EXPECTED = (0.4, 0.6, 0.8, 0.9, 0.95)
EARLIER_EXPECTED = (0.2, 0.45, 0.7, 0.85, 0.95)
"""Matches of 1, 2 or 3, 4 to 7, ... tokens continue as before this often, in the same text and in
earlier completions. Measured: 0.37 and 0.18 after one token, 0.67 and 0.45 after two (ffae947e).
Doubled: -5.8%, -0.2%."""
ONE_TOKEN_SHARE = 0.5
"""The share of its promise that a row after a context of one token keeps. Measured on other texts
(abaf7fbf). It must be at least 0.5, or `Acceptance.doubting` begins with negative counts. Doubled:
-1.1%."""
EXPECTED_BY_RANK = (0.4, 0.15, 0.08, 0.05, 0.04, 0.03, 0.02, 0.02)
"""How often candidates are right, best first: those of a row without confidences, and of a draft
model until some were labelled. Larger: the drafter is waited for more readily at first. By
judgement. Doubled: -0.1%."""
DATASTORE_TOKENS, DATASTORE_SPAN, DATASTORE_MIN_SPAN, DATASTORE_LENGTH = 64, 16, 2, 10
"""A datastore proposes this many tokens. It is searched for a suffix of at most and at least so
many tokens, and a continuation has the last number, as in REST's release (2311.08252). Doubled:
nothing, nothing, nothing, nothing."""
MIN_SEED = 0.5
"""The least likelihood of all tokens of heads that a draft model starts from. Larger: shorter
starts, of which fewer are computed in vain. By judgement. Doubled: nothing."""

# --- Draft steps: whether to wait for one

MAX_DRAFT = 80
"""A forward pass has at most this many draft tokens. By judgement; the planner decides how many."""
MIN_GAIN_OF_WAIT = 1.75
"""How many times as fast as decoding a wait for a draft step must yield tokens; 1 for a draft model
in turns, which loses nothing when it is waited for. Larger: the target waits less. By judgement;
what waits bring is learned (ec8e79c0)."""
NODE_S = 1e-5
"""The seconds in which one more candidate is found and sent. Measured. Larger: smaller trees where
tokens come fast."""
HANDOVER_S = 3e-4
"""The seconds from one process to the other. Measured: 0.2 ms, on a quiet machine. Larger: fewer
waits."""
PRIOR_OF_DEPTH = 0.25
"""The likelihood that a tree of one token counts with, where little else is known. Smaller: the
usual depth of other trees is believed from little evidence; without it a tree was expected to be
ten tokens long, and waited for in vain (525de61d). By judgement."""
PRIOR_TOKENS = 2.0
"""The tokens that drafts, and waits for drafts, count as having promised and brought before any
did. Larger: trust in promises leaves 1 more slowly. By judgement."""
TOKENS_READ_WITH_STEP = 16
"""The new tokens of a text that a draft model reads with a step at negligible cost. Larger: more
unread text counts as free. By judgement. Doubled: nothing."""
TOKENS_READ_IN_STEP = 4.0
"""The least tokens that a draft model reads in the time of a step, before that is measured. Larger:
a draft model in turns starts sooner. Measured: 4 to 16. Doubled: nothing."""
MAX_WAIT = 3.0
"""How many times its expected time a draft is waited for. Larger: slow steps are still awaited, but
a dead drafter holds the target up for longer. By judgement."""
LATE_AFTER = 0.9
"""The share of that time after which a step that did not come is late: clocks and polls are not
exact. By judgement. Doubled: nothing."""
MIN_WAIT_S = 0.3
"""The expected seconds of a draft of unknown cost; a step on the target's cores is waited for as
long at least, since it goes on anyway. By judgement. Doubled: nothing."""
FRESH_S = 0.002
"""The age, in seconds, below which what the drafter made is not asked for again. Larger: fewer
polls, older trees. By judgement. Doubled: nothing."""

# --- The host's work between two forward passes

LEARNING_SHARE, KEEPING_SHARE = 0.03, 0.01
"""The shares of a forward pass that go to finding what the target held likely in its rows, and to
keeping the rows until the next pass. Larger: more rows propose later; the second share delays
decoding. With rows of 151,936 logits these take 40 and 14 us a row (5f9db554); the shares are by
judgement."""
NUM_REHEARSED = 2
"""The verdicts that are rehearsed before a forward pass ends. More: more of them come true, but the
last may not be ready. By judgement. Doubled: nothing."""
FEW_WINDOWS = 16
"""Up to this many continuations are counted faster one by one than by columns. Measured. Doubled:
nothing."""

# --- The draft model's tree

LEAVES = (1, 2, 4, 8)
"""A step may expand these numbers of leaves: the drafter has sequence ids for no more. By
judgement."""
CANDIDATES_OF_LEAF = 16
"""The candidates of each leaf. Compared with 8, 16 bring 7% at 25 ms a pass and 8% at 100
(9495f03a, 7 prompts)."""
MAX_EXPANDED = 120
"""The most nodes that are expanded under a text. Each may be a leaf, and leaves cost sequence ids.
By judgement."""
COST_OF_TWICE_THE_LEAVES = 1.4
"""How many times as much twice the leaves are expected to cost, before they are measured. Larger:
wider steps are tried later. By judgement."""
FIRST_TRUST = 0.7
"""How much guesses by mask tokens are trusted before any is compared. Larger: more guesses are used
unchecked. By judgement. Doubled: nothing."""

# --- Memory

MAX_STORED = 1 << 18
"""The tokens of earlier completions, and rows of the target, that are held for all owners: as many
as the largest vocabularies have. Larger: more is used again, for more memory. By judgement.
Doubled: nothing."""
MAX_CONTEXTS = 1 << 13
"""The latest contexts of two tokens, and of three, whose rows are kept. By judgement. Doubled:
nothing."""
MIN_STORE = 1 << 10
"""The tokens that a store counts as, however little it holds: it bounds the number of owners to
MAX_STORED / MIN_STORE. By judgement. Doubled: nothing."""
