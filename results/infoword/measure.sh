# Trains and fine-tunes all that results/infoword.md shows: some three hours on one core.
# INFOLM_DATA is a folder with wikitext-2, cola, sst2 and xquad.
# The figures are from before some defaults changed; dim_pairs, --choose-on and --windows name the
# former ones.
set -euo pipefail
cd "$(dirname "$0")"
mkdir -p runs json
pretrain() { [ -e "runs/$1/model.safetensors" ] || infolm train infoword/small --out "runs/$1" "${@:2}"; }
pretrain bert-nce --variant bert-nce
pretrain lambda-0.4 objective.dim_pairs=all
pretrain lambda-1 --variant lambda-1 objective.dim_pairs=all
pretrain mlm --variant mlm
pretrain skip-gram --variant skip-gram

finetune() {  # the name of the result, the run, the task, its folder, and settings
    [ -s "json/$1.json" ] || infolm finetune "runs/$2" --task "$3" --data "$INFOLM_DATA/$4" \
        --seeds 3 --choose-on dev --windows all --json --out "runs/$2/finetuned/$1" "${@:5}" > "json/$1.json"
}
cola=(cola cola --epochs 5 --learning-rate 5e-4)
sst2=(sst2 sst2 --epochs 3 --learning-rate 5e-4 --share 0.1)
squad=(squad xquad --epochs 4 --learning-rate 1e-3)
for run in skip-gram mlm bert-nce lambda-0.4 lambda-1; do
    finetune "cola-$run" $run "${cola[@]}"
    finetune "sst2-$run" $run "${sst2[@]}"
    finetune "squad-$run" $run "${squad[@]}"
done
finetune cola-fresh bert-nce "${cola[@]}" --fresh
finetune sst2-fresh bert-nce "${sst2[@]}" --fresh
finetune squad-fresh bert-nce "${squad[@]}" --fresh
for run in bert-nce lambda-1; do
    finetune "squad-$run-0.25" $run "${squad[@]}" --share 0.25
    finetune "squad-$run-0.5" $run "${squad[@]}" --share 0.5
done
python figures.py
