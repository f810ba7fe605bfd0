"""ResNet-50 for inference, layer by layer as torchvision has it: each stage strides in a 3x3 convolution (v1.5).

He et al., "Deep Residual Learning for Image Recognition" (arXiv 1512.03385), table 1. Modules have torchvision's names,
so that its trained weights can be loaded.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

# Of each stage: the width of its bottlenecks, how many there are, and by how much the first one strides.
STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
EXPANSION = 4
CLASSES = 1000
SEED = 20250604
# The last norm of each block is small (Goyal et al., arXiv 1706.02677, section 5.1, begin at 0), so that later layers
# do not magnify what an early one rounds: bf16 logits of images 224 wide are right to 40 dB, at a scale of 1 to 20.
LAST_NORM_SCALE = 0.25
CALIBRATION_IMAGES = 8


class Bottleneck(nn.Module):
    """1x1 to a narrow width, 3x3, 1x1 to four times that width, added to the input or to its projection."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = EXPANSION * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Sequential | None = None
        if inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, inputs, h, w] to [n, 4 x width, h / stride, w / stride]."""
        out = self.bn1(self.conv1(x)).relu_()
        out = self.bn2(self.conv2(out)).relu_()
        out = self.bn3(self.conv3(out))
        out += x if self.downsample is None else self.downsample(x)
        return out.relu_()


class ResNet50(nn.Module):
    """Images [n, 3, side, side] to logits [n, 1000]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        inputs = 64
        for number, (width, blocks, stride) in enumerate(STAGES, start=1):
            first = Bottleneck(inputs, width, stride)
            inputs = EXPANSION * width
            rest = (Bottleneck(inputs, width, 1) for _ in range(blocks - 1))
            self.add_module(f"layer{number}", nn.Sequential(first, *rest))
        self.fc = nn.Linear(inputs, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits of every image."""
        x = self.maxpool(self.bn1(self.conv1(images)).relu_())
        for number in range(1, len(STAGES) + 1):
            x = self.get_submodule(f"layer{number}")(x)
        return self.fc(x.mean(dim=(2, 3)))


def flop_per_image(side: int) -> int:
    """Two a multiplication of convolutions and of the last layer, 8.18 GFLOP at a side of 224.

    Norms, activations, sums and pools are not counted.
    """
    side //= 2
    multiplications = 7 * 7 * 3 * 64 * side**2
    side //= 2
    inputs = 64
    for width, blocks, stride in STAGES:
        outputs = EXPANSION * width
        for block in range(blocks):
            multiplications += inputs * width * side**2
            if block == 0:
                side //= stride
                multiplications += inputs * outputs * side**2
            multiplications += (9 * width * width + width * outputs) * side**2
            inputs = outputs
    return 2 * (multiplications + inputs * CLASSES)


def random_model(device: str | torch.device, side: int = 224) -> ResNet50:
    """A model for inference with random weights of a seed of their own, the same on every device, in float32.

    He's initialisation leaves it to the norms that values do not grow from block to block and that the logits depend on
    the image: their statistics are those of a batch of random images, as a trained model's are those of its data.
    """
    generator = torch.Generator().manual_seed(SEED)
    with torch.device("meta"):
        model = ResNet50()
    model.to_empty(device="cpu")
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu", generator=generator)
        elif isinstance(module, nn.BatchNorm2d):
            module.reset_parameters()
            module.momentum = 1.0  # statistics are those of the last batch
    for name, parameter in model.named_parameters():
        if name.endswith("bn3.weight"):
            nn.init.constant_(parameter, LAST_NORM_SCALE)
    nn.init.normal_(model.fc.weight, std=model.fc.in_features**-0.5, generator=generator)
    nn.init.zeros_(model.fc.bias)
    images = torch.randn(CALIBRATION_IMAGES, 3, side, side, generator=generator)
    model.requires_grad_(False).to(device).train()
    model(images.to(device))
    return model.eval()


@contextmanager
def cudnn_benchmark(is_on: bool) -> Iterator[None]:
    """Let cuDNN try its algorithms on each new shape, or choose by its heuristics; what was set before comes back.

    torch keeps what was chosen first for a shape and gives it whatever the switch says later. TF32 is part of what it
    looks up by, and means nothing to 16 bits (aten/src/ATen/native/cudnn/Conv_v8.cpp, CacheKey, filterEngineConfigs):
    allowed with the one and not with the other, it keeps their choices apart within a process.
    """
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.allow_tf32
    cudnn.benchmark = cudnn.allow_tf32 = is_on
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.allow_tf32 = before
