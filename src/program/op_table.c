#include "program/op_passes.h"

/* x_*, w_*: which forward values the dX and dW passes read, bit i = operand i. */
const OpDesc op_desc[N_OP] = {
    [OP_EMBED] = {.name = "embed", .w_in = 1, .has_dw = 2, .run = {embed_fwd, NULL, embed_dw}},
    [OP_RMSNORM] = {.name = "rmsnorm", .x_in = 1, .x_out = 2, .w_in = 1, .w_out = 2, .has_dw = 2, .run = {rmsnorm_fwd, rmsnorm_dx, rmsnorm_dw}},
    [OP_LINEAR] = {.name = "linear", .x_in = 4, .w_in = 1 | 4, .has_dw = 2, .run = {linear_fwd, linear_dx, linear_dw},
                   .flops = linear_flops, .work = linear_work, .prepare = linear_prepare},
    [OP_ROPE] = {.name = "rope", .run = {rope_fwd, rope_dx}},
    [OP_ATTENTION] = {.name = "attention", .x_in = 7, .x_out = 1 | 2 | 4 | 8, .run = {attention_fwd, attention_dx}, .flops = attention_flops, .work = attention_work,
                      .traffic = attention_traffic},
    [OP_SWIGLU] = {.name = "swiglu", .x_in = 7, .run = {swiglu_fwd, swiglu_dx}},
    [OP_ADD] = {.name = "add", .flags = OPF_PASS_GRAD, .run = {add_fwd}},
    [OP_GATHER] = {.name = "gather", .flags = OPF_COMM | OPF_ALIAS_OUT, .run = {gather_fwd, gather_dx}, .work = gather_work, .traffic = gather_traffic},
    [OP_REDUCE] = {.name = "reduce", .flags = OPF_COMM, .run = {reduce_fwd, reduce_dx}, .work = reduce_work, .traffic = reduce_traffic},
    [OP_ROUTE] = {.name = "route", .x_in = 1, .x_out = 1 | 16, .run = {route_fwd, route_dx}, .work = route_work, .traffic = route_traffic},
    [OP_EXCHANGE_COUNTS] = {.name = "exchange_counts", .flags = OPF_COMM | OPF_SETS_ROWS, .run = {exchange_counts_fwd},
                            .work = exchange_counts_work, .plan_rows = exchange_counts_rows, .traffic = exchange_counts_traffic},
    [OP_PERMUTE] = {.name = "permute", .x_in = 2, .run = {permute_fwd, permute_dx}},
    [OP_PERMUTE_WEIGHTS] = {.name = "permute_weights", .x_in = 2, .run = {permute_weights_fwd, permute_weights_dx}},
    [OP_DISPATCH] = {.name = "dispatch", .flags = OPF_COMM | OPF_ALIAS_OUT, .x_in = 2, .run = {dispatch_fwd, dispatch_dx}, .work = dispatch_work,
                     .traffic = dispatch_traffic},
    [OP_RETURN] = {.name = "return", .flags = OPF_COMM, .x_in = 2, .run = {return_fwd, return_dx}, .work = return_work, .traffic = return_traffic},
    [OP_COMBINE] = {.name = "combine", .x_in = 2, .run = {combine_fwd, combine_dx}},
    [OP_XENT] = {.name = "xent", .x_in = 3, .x_out = 2, .run = {xent_fwd, xent_dx}, .work = xent_work, .traffic = xent_traffic},
};
