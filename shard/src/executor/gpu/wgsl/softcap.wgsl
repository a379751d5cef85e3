                let cap = bitcast<f32>(params[6]);
                s = f_mul(f_tanh(f_div(s, cap)), cap);
