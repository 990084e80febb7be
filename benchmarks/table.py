"""List the experiments: what each asks, what it runs, and the page on which its result stands."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Experiment:
    """A question that is asked again whenever the code changes."""

    name: str
    question: str
    module: str  # of `benchmarks`
    page: str  # of docs/
    function: str = "main"  # returns figures, or None where it writes them itself


_ALL = (
    Experiment("simulated", "How fast is each method on the curves of GPUs?",
               "decoding.simulated", "measurements.md"),
    Experiment("clocked", "Does the simulation say what a clock says?",
               "decoding.clocked", "evaluation.md"),
    Experiment("adversaries", "Is `auto` ever slower than plain decoding where no draft can pay?",
               "decoding.adversaries", "measurements.md"),
    Experiment("grid", "What does `auto` lose on steep curves while it learns them?",
               "decoding.grid", "measurements.md"),
    Experiment("ablation", "Which of the tuned constants does `auto` notice?",
               "decoding.ablation", "evaluation.md"),
    Experiment("unaided", "What are drafts worth without a GPU, beside llama.cpp's own server?",
               "decoding.unaided", "measurements.md"),
    Experiment("busy", "What are drafts worth on a CPU that other programs use, too?",
               "decoding.busy", "trouble.md"),
    Experiment("gaps", "What stands between two forward passes, in this tree and in another?",
               "decoding.gaps", "measurements.md"),
    Experiment("identity", "Is every method's text plain decoding's?",
               "exactness.identity", "exactness.md"),
    Experiment("kernels", "How fast are forward passes on a CPU, with our kernels and llama.cpp's?",
               "kernels.kernels", "measurements.md"),
    Experiment("operations", "How long do the operations of a forward pass on a CPU take?",
               "kernels.operations", "kernels.md"),
    Experiment("cpu", "How fast is decoding on a CPU, compared with other programs?",
               "cpu.cpu", "cpu.md"),
    Experiment("draws", "What does the work on a row of logits cost?",
               "decoding.draws", "measurements.md"),
    Experiment("faithfulness", "How far are our kernels, and llama.cpp's, from float32?",
               "kernels.faithfulness", "kernels.md"),
    Experiment("serving", "How fast is the server with many clients, beside llama.cpp's?",
               "serving.serving", "measurements.md", "load"),
    Experiment("serving-paced", "What are drafts worth to many clients of a slow target?",
               "serving.serving", "measurements.md", "paced"),
    Experiment("embeddings", "How far are embeddings and ranks from llama.cpp's, and how fast?",
               "serving.embeddings", "server.md"),
    Experiment("pictures", "What does an encode of a picture cost, alone and during decoding?",
               "serving.pictures", "images.md"),
    Experiment("calls", "How many calls of tools do models make, and how many are right?",
               "serving.calls", "agents.md", "calls"),
    Experiment("gpu", "T(n), bits, gaps and speed on a GPU, in one call without a network",
               "gpu.gpu", "torch.md"),
    Experiment("vllm", "How fast is vLLM with our drafter, and with its own methods?",
               "vllm.comparison", "vllm.md"),
)  # fmt: skip
EXPERIMENTS = {experiment.name: experiment for experiment in _ALL}
