"""Run by a test: SGLang's Engine, in this process, with hicache_storage_backend="umbp"; prints answers as JSON.

usage: engine_program.py KEYWORDS PROMPT   (two JSON arguments: Engine's keywords, and token ids)
The answers: the prompt's first, its device hit, and what the storage gave after a flush.
"""

import json
import sys
import time

STORAGE_ATTEMPTS = 20


def main(argv: list[str]) -> int:
    import sglang

    keywords, prompt = (json.loads(argument) for argument in argv)
    engine = sglang.Engine(**keywords)
    try:
        answers = [ask(engine, prompt), ask(engine, prompt)]
        for _ in range(STORAGE_ATTEMPTS):  # backing up is in the background
            engine.flush_cache()
            answers[2:] = [ask(engine, prompt)]
            if answers[2]["storage"]:
                break
            time.sleep(0.5)
    finally:
        engine.shutdown()
    print("answers:", json.dumps(answers))
    return 0


def ask(engine, prompt: list[int]) -> dict[str, object]:
    sampling = {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True}
    body = engine.generate(input_ids=prompt, sampling_params=sampling, return_logprob=True)
    details = body["meta_info"].get("cached_tokens_details") or {}
    logprobs = [entry[0] for entry in body["meta_info"]["output_token_logprobs"]]
    return {
        "says": [body["output_ids"], logprobs],
        "storage": details.get("storage") or 0,
        "device": details.get("device") or 0,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
