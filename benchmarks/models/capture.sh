#!/usr/bin/env bash
# Record every program (or those named) with collect, and time its repaired twin.
#   bash benchmarks/models/capture.sh FOLDER [NAME...]
out=$1; shift
programs=benchmarks/models/programs.py
names=${*:-$(grep -A1 '^@program' $programs | grep -o 'def [a-z0-9_]*' | cut -d' ' -f2)}
mkdir -p "$out"
for name in $names; do
    python collect --quiet --out "$out" --name "$name" -- python $programs "$name" 2>&1 |
        grep -a '^plain\|Error' | tee -a "$out/times.txt"
    python $programs "$name" --fixed 2>&1 | grep -a '^plain\|Error' | tee -a "$out/times.txt"
done
