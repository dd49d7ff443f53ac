# Fixtures with their weights.
#
# tests/fixtures/X/drawn.txt says which numbers the files of weights hold: draw_fixture makes them in $(DRAWN)/X,
# beside copies of what is kept and of the tokenizer that most have in common. All of them take two seconds.

# The bundled models, tests/models, keep their weights packed; they are whole in $(BUILD)/models.
$(BUILD)/models/%/model.safetensors: tests/models/%/model.safetensors.zst $(PLANES) $(wildcard tests/models/*/*.json)
	$(call SAY,UNPACK,$@)
	$(Q)mkdir -p $(@D) && cp tests/models/$*/*.json $(@D)
	$(Q)$(PLANES) unpack $< $@

FIXTURES := $(patsubst tests/fixtures/%/config.json,%,$(wildcard tests/fixtures/*/config.json))
DRAW_FIXTURE := $(BUILD)/tests/tools/draw_fixture
.PHONY: fixtures
fixtures: $(DRAWN)/all
$(DRAWN)/all: $(DRAW_FIXTURE) $(wildcard $(FIXTURES:%=tests/fixtures/%/*) tests/fixtures/common/*)
	$(call SAY,DRAW,$(DRAWN))
	$(Q)rm -rf $(DRAWN) && mkdir -p $(DRAWN)
	$(Q)set -e; for name in $(FIXTURES); do \
	    from=tests/fixtures/$$name to=$(DRAWN)/$$name; \
	    mkdir -p $$to; \
	    [ -e $$from/vocab.txt ] || cp tests/fixtures/common/tokenizer*.json $$to; \
	    cp $$from/* $$to; \
	    [ ! -e $$from/drawn.txt ] || $(DRAW_FIXTURE) $$from/drawn.txt $$to; \
	done
	$(Q)touch $@
