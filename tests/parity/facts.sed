# Of log.metrics: what may not depend on the layout, a line for each record.
s/^.*:([0-9]+),"hash":\{"weights":"(.*)","gradients":"(.*)","m":"(.*)","v":"(.*)"\}\}$/step \1 weights \2 gradients \3 moments \4 \5/p
s/^.*"iteration":([0-9]+),"consumed_samples":([0-9]+),(.*),"throughput.*("moe.load_max_over_mean":[^,}]*).*$/step \1 samples \2 \3,\4/p
s/^.*"iteration":([0-9]+),("lm loss validation".*)\}$/step \1 \2/p
