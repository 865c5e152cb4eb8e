job "llm" {
  group "g" {
    task "t" {
      driver = "docker"
      config {
        image = "vllm/vllm-openai:v0.24.0" # the image
        args = ["org/m",
          "--max-num-seqs", "3"]
      }
      env {
        A = "1"
      }
    }
  }
}
