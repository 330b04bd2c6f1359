#!/bin/bash
export NCCL_NVLS_ENABLE=0
T0=$SECONDS; stamp() { echo "@@ $1 at $((SECONDS-T0)) s"; }
tar -C .gpu -xzf .gpu/gpu.tgz
export LD_LIBRARY_PATH=$PWD/.gpu/lib:$LD_LIBRARY_PATH
mkdir -p bin build; cp .gpu/bin/* bin/; cp .gpu/bin/unit_tests build/; echo "BACKENDS := gpu" > build/machine.mk
stamp unit
timeout 100 build/unit_tests -# '[#device_decoder_test]' -d yes 2>&1 | tail -40
stamp rate
timeout 60 build/unit_tests '[.nvjpeg-rate]' -s 2>&1 | tail -30
stamp data
timeout 200 python3 tests/gpu/data $OUT --peers .gpu/peers --images 2000 --rounds 1 --iterations 100 --sources folder --decoders cpu,nvjpeg
stamp end
tail -c 6000 $OUT/data.log
