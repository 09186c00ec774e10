#!/bin/bash
# A Mixture-of-Experts model must beat its dense twin (equal width, equal work per token) on text. Routers that do not learn and experts that
# get the wrong gradient pass every test of equality, but not this one: routing that is not learned gains 0.024, learned routing 0.056.
#   twin.sh ETALON "MPIRUN ..." WORKDIR DATADIR
set -u
export OMP_WAIT_POLICY=passive
etalon=$1 work=$3 data=$4
read -ra mpirun <<<"$2"
mkdir -p "$work" && cd "$work" || exit 2
tail -c 20000 "$data/sotu-1790-1859.txt" >valid.txt
cat >twin.yaml <<END
model: {model_type: mixtral, vocab_size: 257, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 4, intermediate_size: 16,
        num_local_experts: 8, num_experts_per_tok: 1, norm_topk_prob: false, router_aux_loss_coef: 0.01}
numerics: {window: 64}
data: {train: $data/sotu-1860-1869.txt, valid: valid.txt, seq_length: 64}
train: {global_batch_size: 16, micro_batch_size: 16, train_iters: 300}
optimizer: {lr: 5e-3, lr_warmup_iters: 20}
checkpoint: {save_final: false}
log: {interval: 1000}
END
loss() {
  "${mpirun[@]}" -n "$1" "$etalon" train twin.yaml "${@:2}" 2>&1 </dev/null | grep -ao 'validation loss [0-9.]*' | grep -o '[0-9.]*$'
}
moe=$(loss 2 --set layout.ep=2) dense=$(loss 1 --set model.model_type=llama --set model.num_local_experts=0)
echo "validation loss: MoE $moe, dense $dense"
awk -v moe="$moe" -v dense="$dense" 'BEGIN { exit !(moe > 1 && dense > 1 && moe < dense - 0.035) }'
