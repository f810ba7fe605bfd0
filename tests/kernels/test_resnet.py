"""ResNet-50 against known counts, torch's own count of FLOP, a second writing of it, and torchvision where it is."""

from copy import deepcopy

import pytest
import torch
from torch.nn.functional import conv2d, linear, max_pool2d
from torch.utils.flop_counter import FlopCounterMode

from kernels import resnet
from kernels.reference import sqnr_db

SIDE = 64
DTYPES = (torch.float16, torch.bfloat16)


@pytest.fixture(scope="module")
def model():
    return resnet.random_model("cpu", SIDE)


@pytest.fixture(scope="module")
def images():
    return torch.randn(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))


def by_the_paper(state, images):
    """The same model from its weights alone: table 1 of the paper, with the stride in the 3x3 convolution."""

    def convolve(x, name, norm, stride=1):
        weight = state[f"{name}.weight"]
        x = conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
        mean, variance, scale, shift = (
            state[f"{norm}.{of}"][:, None, None] for of in ("running_mean", "running_var", "weight", "bias")
        )
        return (x - mean) / (variance + 1e-5).sqrt() * scale + shift

    x = max_pool2d(convolve(images, "conv1", "bn1", 2).relu(), 3, 2, padding=1)
    for stage, blocks in enumerate((3, 4, 6, 3), start=1):
        for number in range(blocks):
            name, stride = f"layer{stage}.{number}", 2 if stage > 1 and number == 0 else 1
            out = convolve(x, f"{name}.conv1", f"{name}.bn1").relu()
            out = convolve(out, f"{name}.conv2", f"{name}.bn2", stride).relu()
            out = convolve(out, f"{name}.conv3", f"{name}.bn3")
            if number == 0:
                x = convolve(x, f"{name}.downsample.0", f"{name}.downsample.1", stride)
            x = (out + x).relu()
    return linear(x.mean(dim=(2, 3)), state["fc.weight"], state["fc.bias"])


def test_it_has_the_parameters_of_resnet_50(model):
    assert sum(parameter.numel() for parameter in model.parameters()) == 25_557_032
    assert len(model.state_dict()) == 320
    assert not any(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("side", [64, 224])
def test_flop_are_those_that_torch_counts(model, side):
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 3, side, side))
    assert resnet.flop_per_image(side) == counter.get_total_flops()


def test_an_image_of_imagenet_takes_4_09_billion_multiplications():
    assert resnet.flop_per_image(224) == 2 * 4_089_184_256


def test_it_computes_what_the_paper_says(model, images):
    exact = deepcopy(model).double()
    assert sqnr_db(exact(images.double()), by_the_paper(exact.state_dict(), images.double())) > 250


def test_it_computes_what_torchvisions_does_from_the_same_weights(model, images):
    try:
        from torchvision.models import resnet50
    except (ImportError, RuntimeError) as error:  # also one that was built for another torch
        pytest.skip(f"torchvision cannot be imported: {error}")
    theirs = resnet50()
    theirs.load_state_dict(model.state_dict())
    assert list(theirs.state_dict()) == list(model.state_dict())
    with torch.no_grad():
        assert torch.equal(model(images), theirs.eval()(images))


def test_weights_are_the_same_each_time(model):
    again = resnet.random_model("cpu", SIDE).state_dict()
    assert all(torch.equal(values, again[name]) for name, values in model.state_dict().items())


def test_making_a_model_draws_nothing_from_the_common_random_numbers():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    resnet.random_model("cpu", SIDE)
    assert torch.equal(torch.rand(1), expected)


def test_values_neither_grow_nor_die_from_block_to_block(model, images):
    """He's initialisation with norms that do nothing lets values grow a hundredfold over the blocks."""
    outs = []
    hooks = [
        module.register_forward_hook(lambda _module, _inputs, out: outs.append(out))
        for module in model.modules()
        if isinstance(module, resnet.Bottleneck)
    ]
    model(images)
    for hook in hooks:
        hook.remove()
    assert len(outs) == 16
    assert all(0.1 < float(out.std()) < 2 for out in outs)
    assert all(float((out > 0).float().mean()) > 0.3 for out in outs)


@pytest.mark.parametrize(("dtype", "least_db"), [(torch.float16, 43), (torch.bfloat16, 25)])
def test_logits_in_16_bits_are_right_and_tell_images_and_blocks_apart(model, images, dtype, least_db):
    """What passes the bound must be nearer than another image's logits, or those of a model that lacks a block."""
    half = deepcopy(model).to(dtype, memory_format=torch.channels_last)
    exact = deepcopy(half).double()
    expected = exact(images.to(dtype).double())
    logits = half(images.to(dtype).contiguous(memory_format=torch.channels_last))
    assert sqnr_db(logits, expected) >= least_db
    assert 0.1 < expected.std() < 10
    assert sqnr_db(expected.roll(1, dims=0), expected) < least_db - 10
    exact.get_submodule("layer3.3.conv2").weight.zero_()
    assert sqnr_db(exact(images.to(dtype).double()), expected) < least_db - 10


@pytest.mark.parametrize("before", [(False, True), (True, True), (False, False)])
@pytest.mark.parametrize("is_on", [False, True])
def test_cudnn_is_left_as_it_was_also_after_a_failure(is_on, before, monkeypatch):
    cudnn = torch.backends.cudnn
    monkeypatch.setattr(cudnn, "benchmark", before[0])
    monkeypatch.setattr(cudnn, "allow_tf32", before[1])
    with pytest.raises(ZeroDivisionError), resnet.cudnn_benchmark(is_on):
        assert cudnn.benchmark is is_on
        _ = 1 / 0
    assert (cudnn.benchmark, cudnn.allow_tf32) == before


def test_what_cudnn_chose_by_trial_is_not_what_it_finds_by_heuristics():
    """torch looks plans up by shape, type and TF32, not by the switch: the second of two settings had the first's."""
    looked_up_by = []
    for is_on in (True, False):
        with resnet.cudnn_benchmark(is_on):
            looked_up_by.append(torch.backends.cudnn.allow_tf32)
    assert looked_up_by == [True, False]
