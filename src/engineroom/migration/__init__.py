"""Reading an `inflight_batcher_llm` setup, drafting a spec for the same service, and telling the
fate of every setting. Pure: texts in, data out; nothing of the old setup is run."""
