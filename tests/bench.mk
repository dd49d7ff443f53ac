# Benchmarks.

.PHONY: bench bench-strategies bench-calibrate bench-coe bench-gpu
bench: all tools
	@BUILD=$(BUILD) sh tests/bench/run.sh
# Every strategy, and the papers' ablations: over an hour.
bench-strategies: all tests tools
	@BUILD=$(BUILD) sh tests/bench/strategies.sh
# Bit maps of the bundled model for five tolerances: three quarters of an hour.
bench-calibrate: all tools
	@BUILD=$(BUILD) sh tests/bench/calibrate.sh
bench-coe: all tests tools
	@BUILD=$(BUILD) sh tests/bench/coe_real.sh
bench-gpu: all tools
	@BUILD=$(BUILD) sh tests/bench/gpu.sh
