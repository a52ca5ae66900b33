# In the emulated machine: the demo's simulation on two ranks and its analysis, with their channel on persistent memory,
# until the power goes; first what was promised before is looked for. `built`, `acknowledged`, `from`, `deck` and
# `reference` are set before.
path=$NVDIMM0/gs
"$built/examples/demo_until_cut" look "$path" "$reference" 8 "$acknowledged" || exit
export FOREBAY_CHANNEL_GS="{\"path\": \"$path\", \"tier\": \"pmem\", \"quota\": \"64MiB\", \"horizon\": \"epoch\",
    \"retention\": \"last:8\"}"
export FOREBAY_SIZE=2 FOREBAY_TIMEOUT=300
part() {
    "$built/forebay" app "$@" >/dev/null || echo "wrong $2 ended with status $?"
}
for rank in 0 1; do
    FOREBAY_RANK=$rank part gray-scott --deck "$deck" $steps &
done
FOREBAY_RANK=0 FOREBAY_SIZE=1 part analysis --out "$NVDIMM0/analysis" --existing continue --slices-every 0 &
exec "$built/examples/demo_until_cut" follow "$path" "$from"
