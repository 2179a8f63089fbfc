"""Two hundred command lines: half hold a secret, half hold what may look like one."""

from __future__ import annotations

# Random, as services make them; none of them was ever valid.
LONG = "q7Zt3Kp9LmX2vRb8Nc4WyT6h"
LOWER = "k3v9x2m7q1z8w4t6r5n0p"
HEX = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b"
SHORT = "hunter2"

# In each line, {} is the secret.
_NAMED = """\
python train.py --token {}
python train.py --token={}
python train.py --token -{}
python train.py --hf-token {} --lr 0.1
python train.py --hf_token={} --lr 0.1
python train.py --pass {}
python train.py --password {}
python train.py --passwd={}
python train.py --db-password {} --db-user ann
python train.py --api-key {}
python train.py --api_key={}
python train.py --apikey {}
python train.py --wandb-key {}
python train.py --wandb_api_key={}
python train.py --secret {}
python train.py --client-secret={}
python train.py --access-key {}
python train.py --aws-secret-access-key {}
python train.py --private-key {}
python train.py --auth {}
python train.py --auth-token={}
python train.py --credential {}
python train.py --credentials={}
python train.py --passphrase {}
python train.py --cookie {}
python train.py --jwt {}
python train.py --session-id {}
python train.py --slack-webhook {}
python train.py --db.pwd {}
python train.py --env=HF_TOKEN={}
python train.py --env HF_TOKEN={}
python train.py -e WANDB_API_KEY={}
python train.py --label token={}
python train.py wandb.api_key={}
python train.py logger.comet.api_key={} trainer.max_steps=10
python train.py +auth.token={}
python train.py ++secrets.password={}
python train.py tokenizer.token={}
python train.py --config '{"token": "{}", "lr": 0.1}'
python train.py --config "{'password': '{}'}"
env HF_TOKEN={} python train.py
env WANDB_API_KEY={} CUDA_VISIBLE_DEVICES=0 python train.py
env AWS_SECRET_ACCESS_KEY={} python train.py
env DB_PASS={} python train.py
env MLFLOW_TRACKING_PASSWORD={} python train.py
sh -c "WANDB_API_KEY={} python train.py"
sh -c "export HF_TOKEN={}; python train.py"
sh -c "HF_TOKEN='{}' python train.py --lr 0.1"
bash -c "wandb login --key {} && python train.py; API_KEY={}"
bash -lc "PASSWORD={} exec python train.py"
curl -H "Authorization: Bearer {}" -o data.bin example.org/data
curl -H "authorization: token {}" example.org
curl -H "Authorization: Basic {}" example.org
curl -H "X-Api-Key: {}" example.org
curl -H "X-Auth-Token: {}" example.org
curl -u ann:{} example.org
curl --user ann:{} example.org
curl --header="Authorization: Bearer {}" example.org
python fetch.py --header Bearer {}
python fetch.py Authorization: Bearer {}
python fetch.py --url https://example.org/x?access_token={}
python fetch.py --url=https://example.org/x?rev=main&sig={}
python fetch.py example.org/x?access_token={}
python fetch.py "example.org/x?rev=1&api_key={}"
python fetch.py https://bucket.example.org/x?X-Amz-Signature={}
python fetch.py https://ann:{}@example.org/x.git
python fetch.py https://{}@example.org/x.git
python fetch.py --db postgresql://ann:{}@db:5432/runs
python fetch.py redis://:{}@cache:6379/0
docker run -e HF_TOKEN={} image python train.py
docker run --env HF_TOKEN={} image
docker run --env=API_KEY={} image
srun --export=ALL,HF_TOKEN={} python train.py
torchrun --nproc-per-node 8 train.py --hub_token {}
accelerate launch train.py --push_to_hub_token={}
deepspeed train.py --hf.auth_token {}
"""
_RANDOM = """\
python train.py {}
python train.py --id {}
python train.py --run={}
python train.py --x {} --lr 0.1
python train.py login:{}
sh -c "wandb login {}"
huggingface-cli login {}
env FOO={} python train.py
"""
_FORMS = """\
hf_abcdefghijklmnop
sk-proj-abcdefgh1234
ghp_abcdefghijklmnop
github_pat_11ABCDEFG0abcdefgh
glpat-abcdefghijkl
AKIAABCDEFGHIJKLMNOP
xoxb-123456789012-abcdefgh
ya29.a0AfH6SMBabcdefgh
eyJhbGciOiJIUzI1NiIsInR5cCI6.eyJzdWIiOiIxMjM0.abc
"""
_PAIRS = [
    *((line, SHORT) for line in _NAMED.splitlines()),
    *((line, word) for line in _RANDOM.splitlines() for word in (LONG, HEX)),
    *(("python train.py --x {}", word) for word in _FORMS.splitlines()),
    ("python train.py {}", LOWER),
]
SECRET = [(line.replace("{}", word), word) for line, word in _PAIRS]
"""Command lines, each with the secret in it."""

HARMLESS = """\
python train.py
python train.py --lr 0.1 --batch 32
python train.py --lr=3e-4 --betas 0.9,0.999
python train.py --max-tokens 512
python train.py --max_new_tokens=128
python train.py --num-tokens 1000000
python train.py --tokens-per-batch 4096
python train.py --tokenizer gpt2
python train.py --tokenizer=meta-llama/Llama-3.1-8B-Instruct
python train.py --tokenizer_name bert-base-uncased
python train.py --pad-token <pad>
python train.py --eos_token=</s>
python train.py --mask_token [MASK]
python train.py --token-type word
python train.py --token_dropout 0.1
python train.py --token-embedding-size 768
python train.py --num_passes 3
python train.py --bypass yes
python train.py --passes 2
python train.py --author ann
python train.py --key-dim 64
python train.py --key_size=64
python train.py --text_key caption
python train.py --image-key jpg
python train.py --sort-key length
python train.py --monitor_key val_loss
python train.py --use-token --x
python train.py --use_auth_token --lr 0.1
python train.py --no-password --lr 0.1
python train.py --model meta-llama/Llama-3.1-8B-Instruct
python train.py --model Qwen/Qwen2.5-Coder-32B-Instruct
python train.py --model mistralai/Mixtral-8x7B-Instruct-v0.1
python train.py --model=facebook/opt-125m --revision main
python train.py --model google/vit-base-patch16-224-in21k
python train.py --model vit_large_patch14_clip_224.openai_ft_in12k_in1k
python train.py --model tf_efficientnetv2_s.in21k_ft_in1k
python train.py --model swinv2_base_window12to16_192to256
python train.py --model Qwen25Coder32BInstruct
python train.py --dataset wikitext --subset wikitext-103-raw-v1
python train.py --dataset HuggingFaceFW/fineweb-edu
python train.py --data data/imagenet_train_224.tar
python train.py --data /data/shards/train-{000000..001023}.tar
python train.py --out runs/2026-11-15T12-30-00_lr3e-4_bs32
python train.py --out checkpoints/checkpoint_epoch_10_step_2000.pt
python train.py --resume checkpoints/epoch=10-step=20000-val_loss=0.1234.ckpt
python train.py --name experiment-17-larger-batch-and-longer-warmup
python train.py --name transformer_big_wmt14_en_de_label_smoothing
python train.py --seed 20261115 --world-size 1024
python train.py --seed 12345678901234567890
python train.py --per_device_train_batch_size 32
python train.py --gradient_accumulation_steps=16 --gradient_checkpointing
python train.py --lr_scheduler_type cosine_with_restarts
python train.py --dtype bfloat16 --attn_implementation flash_attention_2
python train.py --optim adamw_torch_fused
python train.py --compile --compile-mode max-autotune-no-cudagraphs
python train.py --fp8-format E4M3 --fp8-recipe delayed
python train.py trainer.max_steps=100 model.dim=768 +data.workers=4
python train.py optimizer._target_=torch.optim.AdamW optimizer.lr=0.001
python train.py model.tokenizer.max_length=512
python train.py hydra.run.dir=outputs/now
python train.py --config configs/llama3_8b_fsdp.yaml
python train.py --config=configs/pretrain/gpt2-124M.toml
python train.py --overrides {"lr":0.1,"batch":32}
python train.py --shape 32,3,224,224
python train.py --layers 2-4-8-16
python train.py --device cuda:0
python train.py --master_addr 127.0.0.1 --master_port 29500
python train.py --url https://example.org/data.tar.gz
python train.py --url https://huggingface.co/gpt2/resolve/main/config.json
python train.py --dist-url tcp://127.0.0.1:29500
python train.py --tracking-uri http://localhost:5000
python train.py s3://bucket/folder/file.parquet
python train.py gs://bucket/folder/part-00001-of-01024
python train.py --image nvcr.io/nvidia/pytorch:25.09-py3
python train.py --uuid 123e4567-e89b-12d3-a456-426614174000
python train.py --commit 9f86d08
python train.py --date 2026-11-15 --time 18:35:00
python train.py --prompt "What is the secret of a good loaf of bread?"
python train.py --prompt "basic training: a short story"
python train.py --message "the password is not here"
python train.py --notes "tokens per second, keys and values"
python train.py --secretary ann
python -m torch.distributed.run --nproc_per_node=8 train.py
python -m my.trainer --lr 0.1
python3.11 -X importtime -W ignore train.py
python -c "import torch; print(torch.__version__)"
python -c "x = dict(key=1, value=2)"
torchrun --standalone --nproc-per-node 8 train.py
torchrun --rdzv-backend c10d --rdzv-endpoint localhost:29400 train.py
torchrun --nnodes 2 --node-rank 0 --rdzv-id 4711 train.py
accelerate launch --mixed_precision bf16 train.py
deepspeed --num_gpus 8 train.py --deepspeed ds_config_zero3.json
env CUDA_VISIBLE_DEVICES=0,1 python train.py
env OMP_NUM_THREADS=8 NCCL_DEBUG=INFO python train.py
env PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py
env TOKENIZERS_PARALLELISM=false python train.py
srun --ntasks=8 --gpus-per-task=1 python train.py
bash run.sh 8 llama3_8b
sh -c "cd src && python train.py --lr 0.1 | tee log.txt"
sh -c "OMP_NUM_THREADS=8 python train.py"
docker run --gpus all -v data:/data image python train.py
""".splitlines()
